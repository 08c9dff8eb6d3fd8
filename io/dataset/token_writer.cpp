// SPDX-License-Identifier: Apache-2.0
#include "dataset/token_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "dataset/llmc_header.hpp"
#include "files/npy_header.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::int64_t kMostBinTokens = std::numeric_limits<std::int32_t>::max();

template <class T>
void encode(std::span<const std::int32_t> ids, std::vector<std::byte>& buffer) {
  const std::size_t begin = buffer.size();
  buffer.resize(begin + ids.size() * sizeof(T));
  std::byte* out = buffer.data() + begin;
  for (const std::int32_t id : ids) {
    const auto value = static_cast<T>(id);
    std::memcpy(out, &value, sizeof(T));
    out += sizeof(T);
  }
}

}  // namespace

TokenWriter::Format TokenWriter::format_of(const std::string& path) {
  if (path.ends_with(".bin")) return Format::bin;
  if (path.ends_with(".npy")) return Format::npy;
  if (path.ends_with(".h5") || path.ends_with(".hdf5")) return Format::hdf5;
  throw Error(ExitCode::usage,
              fmt::format("output '{}': expected a name that ends in .bin, .npy or "
                          ".h5, found none of these; rename the output",
                          path));
}

TokenWriter::TokenWriter(const std::string& path, const VocabularyRecord& vocabulary)
    : path_(path),
      format_(format_of(path)),
      vocabulary_(vocabulary),
      width_(vocabulary.ids <= 65536 ? 2 : 4),
      file_(path, process_suffix(format_ == Format::hdf5 ? "ids" : "tmp")) {
  buffer_.reserve(2 * kBufferBytes);
  if (format_ == Format::bin) buffer_.resize(kLlmcHeaderBytes);
  if (format_ == Format::npy) buffer_.resize(kNpyHeaderBytes);
}

void TokenWriter::append(std::span<const std::int32_t> ids) {
  const std::int64_t count = count_ + static_cast<std::int64_t>(ids.size());
  if (format_ == Format::bin && count > kMostBinTokens) fail_length();
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < vocabulary_.ids, "token writer: an id outside the vocabulary");
    if (document_begins_) ++documents_;
    document_begins_ = id == vocabulary_.end;
  }
  count_ = count;
  const std::size_t piece = kBufferBytes / static_cast<std::size_t>(width_);
  while (!ids.empty()) {
    const auto now = ids.first(std::min(piece, ids.size()));
    width_ == 2 ? encode<std::uint16_t>(now, buffer_) : encode<std::uint32_t>(now, buffer_);
    if (buffer_.size() >= kBufferBytes) flush();
    ids = ids.subspan(now.size());
  }
}

void TokenWriter::append_document(std::span<const std::int32_t> ids,
                                  std::span<const std::uint8_t> mask) {
  require(format_ == Format::hdf5 && ids.size() == mask.size() && !ids.empty(),
          "token writer: a document with another mask, or in a file without one");
  require(mask_.has_value() == (count_ > 0), "token writer: documents after other tokens");
  if (!mask_) mask_.emplace(path_, process_suffix("mask"));
  starts_.push_back(count_);
  append(ids);
  documents_ = std::ssize(starts_);
  mask_buffer_.insert(mask_buffer_.end(), mask.begin(), mask.end());
  if (mask_buffer_.size() >= kBufferBytes) flush();
}

void TokenWriter::fail_length() const {
  throw Error(
      ExitCode::data,
      fmt::format("output '{}': expected at most {} tokens (32 bits in llm.c's header), found "
                  "more; name the output .npy or .h5, or write several files",
                  path_, kMostBinTokens));
}

void TokenWriter::flush() {
  file_.append(buffer_);
  buffer_.clear();
  if (mask_) mask_->append(std::as_bytes(std::span(mask_buffer_)));
  mask_buffer_.clear();
}

std::int64_t TokenWriter::finish() {
  flush();
  switch (format_) {
    case Format::bin: finish_bin(); break;
    case Format::npy: finish_npy(); break;
    case Format::hdf5: finish_hdf5(); break;
  }
  return count_;
}

void TokenWriter::finish_bin() {
  std::array<std::int32_t, kLlmcHeaderWords> header{};
  header[0] = width_ == 2 ? kLlmcMagic16 : kLlmcMagic32;
  header[1] = width_ == 2 ? kLlmcVersion16 : kLlmcVersion32;
  header[2] = static_cast<std::int32_t>(count_);
  if (vocabulary_.fingerprint != 0) {
    const auto half = [&](unsigned shift) {
      return static_cast<std::int32_t>(
          static_cast<std::uint32_t>(vocabulary_.fingerprint >> shift));
    };
    const std::array record = {kRecordMark, static_cast<std::int32_t>(vocabulary_.ids), half(0),
                               half(32), vocabulary_.end};
    std::ranges::copy(record, header.begin() + kRecordWord);
  }
  file_.write_at(0, std::as_bytes(std::span(header)));
  file_.commit();
}

void TokenWriter::finish_npy() {
  const std::string header = npy_header(fmt::format("<u{}", width_), fmt::format("({},)", count_));
  file_.write_at(0, std::as_bytes(std::span(header)));
  file_.commit();
}

void write_token_file(const std::string& path, std::span<const std::int32_t> ids,
                      std::int64_t vocabulary, std::int32_t end_of_text) {
  TokenWriter writer(path, {.ids = vocabulary, .end = end_of_text});
  writer.append(ids);
  writer.finish();
}

}  // namespace hyperslab::io
