// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>

#include "dataset/document_view.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kPiece = 4096;  // ids on the stack at once

/// FNV-1a with an id instead of a byte, then the finalizer of MurmurHash3, which spreads it over
/// all bits. A function of the ids alone, whatever the file's element type.
std::uint64_t document_hash(const TokenSource& all, std::int64_t begin, std::int64_t end) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  std::array<std::int32_t, kPiece> piece;
  while (begin < end) {
    const auto ids =
        std::span(piece).first(static_cast<std::size_t>(std::min(kPiece, end - begin)));
    all.read(begin, ids);
    for (const std::int32_t id : ids) {
      hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001B3ULL;
    }
    begin += static_cast<std::int64_t>(ids.size());
  }
  hash = (hash ^ (hash >> 33U)) * 0xFF51AFD7ED558CCDULL;
  hash = (hash ^ (hash >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return hash ^ (hash >> 33U);
}

/// Hashes of the documents that begin at `starts`, by all OpenMP threads.
std::vector<std::uint64_t> document_hashes(const TokenSource& all,
                                           const std::vector<std::int64_t>& starts) {
  std::vector<std::uint64_t> hashes(starts.size());
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 64)
  for (std::size_t i = 0; i < starts.size(); ++i) {
    try {
      const std::int64_t end = i + 1 < starts.size() ? starts[i + 1] : all.size();
      hashes[i] = document_hash(all, starts[i], end);
    } catch (...) {
#pragma omp critical(hyperslab_document_hashes)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return hashes;
}

[[noreturn]] void fail_side(const TokenSource& all, std::size_t documents, double fraction,
                            const std::string& side) {
  throw Error(
      ExitCode::data,
      fmt::format("{}: expected documents on both sides of data.validation_fraction {}, found "
                  "none for {} among {}; give more documents or another fraction",
                  all.description(), fraction, side, documents));
}

/// Ids that these files may use: the model's, whose tables may be padded, or the vocabulary's,
/// where a file of another one would go unnoticed.
std::int64_t ids_of(const std::vector<std::string>& paths, std::int64_t vocabulary,
                    std::int64_t ids) {
  const bool is_generated = paths == std::vector<std::string>{"synthetic"};
  return ids == 0 || is_generated ? vocabulary : std::min(vocabulary, ids);
}

}  // namespace

DataTokens split_documents(const std::shared_ptr<const TokenSource>& all, double fraction,
                           std::int32_t end_token) {
  require(fraction > 0 && fraction < 1, "a split of documents into nothing and all");
  const std::vector<std::int64_t> starts = all->documents(end_token);
  const std::vector<std::uint64_t> hashes = document_hashes(*all, starts);
  const auto limit = static_cast<std::uint64_t>(std::ldexp(fraction, 64));
  auto train = std::make_unique<DocumentView>(all, "training");
  auto validation = std::make_unique<DocumentView>(all, "validation");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t end = i + 1 < starts.size() ? starts[i + 1] : all->size();
    (hashes[i] < limit ? validation : train)->append(starts[i], end);
  }
  if (train->size() == 0) fail_side(*all, starts.size(), fraction, "training");
  if (validation->size() == 0) fail_side(*all, starts.size(), fraction, "validation");
  return {std::move(train), std::move(validation)};
}

DataTokens open_data(const DataConfig& data, std::int64_t vocabulary, std::uint64_t seed,
                     DataPart part, std::int64_t ids, const TokenColumns& columns) {
  constexpr std::int64_t kByteIds = 257;  // and end of text
  const std::int64_t training_ids = data.vocabulary == "bytes" ? kByteIds : ids;
  const auto open_train = [&] {
    return open_tokens(data.train, data.dtype, ids_of(data.train, vocabulary, training_ids), seed,
                       data.loss_mask, data.join_files, {columns, true});
  };
  if (data.validation_fraction > 0) {
    return split_documents(open_train(), data.validation_fraction, data.end_token);
  }
  DataTokens tokens;
  if (part == DataPart::both) tokens.train = open_train();
  if (!data.validation.empty()) {
    tokens.validation =
        open_tokens(data.validation, data.dtype, ids_of(data.validation, vocabulary, ids), seed + 1,
                    data.loss_mask, data.join_files, {columns, false});
  }
  return tokens;
}

}  // namespace hyperslab::io
