// SPDX-License-Identifier: Apache-2.0
#include "dataset/token_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "dataset/fingerprint.hpp"
#include "dataset/ids.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kScanBytes = 1LL << 30;

}  // namespace

TokenFiles::TokenFiles(std::vector<Shard> shards, std::int64_t vocabulary,
                       std::vector<std::size_t> first_shards, bool joined)
    : shards_(std::move(shards)),
      vocabulary_(vocabulary),
      first_shards_(std::move(first_shards)),
      joined_(joined) {
  require(!shards_.empty(), "token source without files");
  std::int64_t tokens = 0;
  for (const Shard& shard : shards_) ends_.push_back(tokens += shard.count);
  check_all_ids();
  for (const Shard& shard : shards_) shard.file.expect(MappedFile::Access::random);
}

std::vector<std::int64_t> TokenFiles::parts() const {
  std::vector<std::int64_t> starts;
  starts.reserve(first_shards_.size());
  for (const std::size_t shard : first_shards_) {
    starts.push_back(shard == 0 ? 0 : ends_[shard - 1]);
  }
  return starts;
}

std::vector<std::int64_t> TokenFiles::segments() const {
  std::vector<std::int64_t> starts = {0};
  if (!joined_) starts.insert(starts.end(), ends_.begin(), ends_.end() - 1);
  return starts;
}

void TokenFiles::check_all_ids() const {
  std::int64_t bytes = 0;
  for (const Shard& shard : shards_) bytes += shard.bytes();
  if (bytes > kScanBytes) return;
  for (const Shard& shard : shards_) {
    shard.file.expect(MappedFile::Access::sequential);
    if (largest_id(shard) >= static_cast<std::uint64_t>(vocabulary_)) {
      fail_id(shard, 0, shard.count);
    }
  }
}

void TokenFiles::fail_id(const Shard& shard, std::int64_t first, std::int64_t count) const {
  const std::int64_t index = find_bad_id(shard, first, count, vocabulary_);
  const std::string byte =
      shard.offset < 0 ? "" : fmt::format(", byte {}", shard.offset + index * size_of(shard.type));
  const bool raw = shard.format.starts_with("raw");
  fail_file(shard.path, fmt::format("token ids below the vocabulary of {}", vocabulary_),
            fmt::format("id {} at token {}{} ({})", id_at(shard, index), index, byte, shard.format),
            fmt::format("tokenize with data.vocabulary, or correct it{} or model.vocabulary",
                        raw ? ", data.dtype" : ""));
}

template <class T, class Action>
void TokenFiles::for_each_part(std::int64_t first, std::span<T> out, std::int64_t columns,
                               Action action) const {
  require(first >= 0 && first + std::ssize(out) / columns <= size(),
          "tokens beyond the end of the source");
  auto number = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  while (!out.empty()) {
    const Shard& shard = shards_[number];
    const std::int64_t index = first - (ends_[number] - shard.count);
    const std::int64_t count = std::min(std::ssize(out) / columns, shard.count - index);
    const auto here = out.first(static_cast<std::size_t>(count * columns));
    action(shard, index, here);
    out = out.subspan(here.size());
    first += count;
    ++number;
  }
}

void TokenFiles::read(std::int64_t first, std::span<std::int32_t> out) const {
  for_each_part(first, out, 1, [&](const Shard& shard, std::int64_t index, auto here) {
    if (copy_ids(shard, index, here) >= static_cast<std::uint64_t>(vocabulary_)) {
      fail_id(shard, index, static_cast<std::int64_t>(here.size()));
    }
  });
}

void TokenFiles::read_mask(std::int64_t first, std::span<std::uint8_t> out) const {
  for_each_part(first, out, 1, [](const Shard& shard, std::int64_t index, auto here) {
    std::memcpy(here.data(), shard.mask() + index, here.size());
  });
}

void TokenFiles::read_values(std::int64_t first, std::span<float> out) const {
  for_each_part(first, out, columns().count(), read_shard_values);
}

void TokenFiles::read_teacher_ids(std::int64_t first, std::span<std::int32_t> out) const {
  for_each_part(first, out, columns().teachers,
                [&](const Shard& shard, std::int64_t index, auto here) {
                  read_shard_teachers(shard, index, vocabulary_, here);
                });
}

std::vector<std::int64_t> TokenFiles::documents(std::int32_t end_token) const {
  std::vector<std::int64_t> all;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const std::int64_t start : documents_of(shards_[i], end_token)) {
      all.push_back(before + start);
    }
    before = ends_[i];
  }
  return all;
}

std::vector<std::pair<std::string, VocabularyRecord>> TokenFiles::vocabularies() const {
  std::vector<std::pair<std::string, VocabularyRecord>> out;
  for (const Shard& shard : shards_) {
    if (shard.vocabulary.ids > 0) out.emplace_back(shard.path, shard.vocabulary);
  }
  return out;
}

std::string TokenFiles::description() const {
  std::vector<std::string> formats;
  for (const Shard& shard : shards_) {
    if (std::ranges::find(formats, shard.format) == formats.end()) formats.push_back(shard.format);
  }
  const std::string names = shards_.size() == 1
                                ? shards_.front().path
                                : fmt::format("{} files from {} to {}", shards_.size(),
                                              shards_.front().path, shards_.back().path);
  return fmt::format("{}: {} tokens, {}", names, size(), fmt::join(formats, ", "));
}

std::uint64_t TokenFiles::fingerprint() const {
  std::call_once(fingerprint_once_, [this] { fingerprint_ = fingerprint_of(shards_); });
  return fingerprint_;
}

std::vector<TokenFileSummary> TokenFiles::files() const {
  const std::vector<std::uint64_t> fingerprints = fingerprints_of_each(shards_);
  std::vector<TokenFileSummary> out;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    out.push_back({shard.path, shard.format, shard.count, shard.opened.bytes, fingerprints[i]});
  }
  return out;
}

void TokenFiles::require_unchanged() const {
  for (const Shard& shard : shards_) {
    require_stamp(shard.path, shard.opened);
    for_each_column(shard, [](const ShardColumn& column) {
      if (!column.path.empty()) require_stamp(column.path, column.file.stamp());
    });
  }
}

}  // namespace hyperslab::io
