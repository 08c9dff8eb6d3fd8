// SPDX-License-Identifier: Apache-2.0
#include "images/set_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "files/atomic_file.hpp"
#include "files/npy_header.hpp"
#include "hyperslab/core/philox.hpp"
#include "images/packed_set.hpp"
#include "images/tar_reader.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBufferBytes = 4 << 20;
constexpr std::int64_t kEndBytes = 2 * kTarBlock;  // zeros at the end of a tar
constexpr std::size_t kMostName = 100;  // name field of a ustar header, without its prefix

/// Runs `work`; the system's error becomes fail_write()'s.
template <class Work>
void writing(const std::string& output, Work work) {
  try {
    work();
  } catch (const storage::CallError& error) {
    fail_write(output, error.error_number());
  }
}

/// A header of ustar for a regular file, the same for the same name and size.
std::string tar_header(const std::string& name, std::int64_t bytes) {
  std::string header(static_cast<std::size_t>(kTarBlock), '\0');
  const auto put = [&](std::size_t at, std::string_view text) {
    std::memcpy(header.data() + at, text.data(), text.size());
  };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", bytes));
  put(136, "00000000000");
  put(148, "        ");
  put(156, "0");
  put(257, std::string_view("ustar\00000", 8));
  std::uint32_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + '\0');
  return header;
}

/// One part of a path: without slashes, zeros, or dots alone.
std::string plain(std::string name) {
  std::ranges::replace(name, '/', '_');
  std::ranges::replace(name, '\0', '_');
  return name.empty() || name == "." || name == ".." ? "_" + name : name;
}

/// `at`, or the next byte after it at which a character of UTF-8 begins or the text ends.
std::size_t character_from(std::string_view text, std::size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) ++at;
  return at;
}

}  // namespace

SetWriter::SetWriter(std::string output, std::int64_t shard_bytes)
    : output_(std::move(output)), shard_bytes_(shard_bytes) {
  while (output_.size() > 1 && output_.ends_with('/')) output_.pop_back();
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(output_, ignored))) {
    throw Error(ExitCode::usage,
                fmt::format("--output '{}' exists; name a new folder, or remove it", output_));
  }
  temporary_ = output_ + "." + process_suffix();
  writing(output_, [&] { storage::make_folder(temporary_); });
}

SetWriter::~SetWriter() {
  if (temporary_.empty()) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

void SetWriter::flush() {
  writing(output_, [&] {
    file_->write_at(static_cast<std::uint64_t>(written_), buffer_.data(), buffer_.size());
  });
  written_ += static_cast<std::int64_t>(buffer_.size());
  buffer_.clear();
}

void SetWriter::append(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() >= kBufferBytes) flush();
}

void SetWriter::begin_shard() {
  shards_.push_back({fmt::format("shard_{:05}.tar", shards_.size())});
  written_ = 0;
  writing(output_,
          [&] { file_.emplace(storage::File::create(temporary_ + "/" + shards_.back().file)); });
}

void SetWriter::end_shard() {
  append(std::string(static_cast<std::size_t>(kEndBytes), '\0'));
  flush();
  writing(output_, [&] {
    file_->sync();
    file_->close();
  });
  file_.reset();
  shards_.back().bytes = written_;
}

std::string SetWriter::member_name(const std::string& folder, const std::string& file) {
  std::string name = plain(folder) + "/" + plain(file);
  if (name.size() <= kMostName && names_.insert(name_hash(name)).second) return name;
  const std::string head = plain(folder).substr(0, character_from(plain(folder), 40));
  const std::string tail = plain(file);
  for (std::size_t number = rows_.size();; ++number) {  // two of a name, or too long
    name = fmt::format("{}/{:09}_", head, number);
    const std::size_t room = kMostName - name.size();
    name += tail.substr(tail.size() > room ? character_from(tail, tail.size() - room) : 0);
    if (names_.insert(name_hash(name)).second) return name;
  }
}

void SetWriter::add(const std::string& folder, const std::string& file, std::int64_t label,
                    std::string_view image) {
  const auto bytes = static_cast<std::int64_t>(image.size());
  const auto at = [&] { return written_ + static_cast<std::int64_t>(buffer_.size()); };
  const std::int64_t end = at() + kTarBlock + in_tar_blocks(bytes) + kEndBytes;
  if (file_ && end > shard_bytes_) end_shard();
  if (!file_) begin_shard();
  append(tar_header(member_name(folder, file), bytes));
  rows_.push_back({static_cast<std::int64_t>(shards_.size()) - 1, at(), bytes, label});
  append(image);
  append(std::string(static_cast<std::size_t>(in_tar_blocks(bytes) - bytes), '\0'));
  ++shards_.back().images;
}

const std::vector<SetWriter::Shard>& SetWriter::end_shards() {
  if (file_) end_shard();
  return shards_;
}

void SetWriter::finish(const std::string& set) {
  writing(output_, [&] {
    std::string index = npy_header("<i8", fmt::format("({}, 4)", rows_.size()));
    const auto rows = std::as_bytes(std::span(rows_));
    index.append(reinterpret_cast<const char*>(rows.data()), rows.size());
    storage::write_text(temporary_ + "/" + kIndexFile, index);
    storage::write_text(temporary_ + "/" + kSetFile, set);
    storage::sync_folder(temporary_);
    storage::rename(temporary_, output_);
    temporary_.clear();
    storage::sync_folder(storage::parent_of(output_));
  });
}

}  // namespace hyperslab::io
