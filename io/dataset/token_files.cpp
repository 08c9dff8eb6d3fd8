// SPDX-License-Identifier: Apache-2.0
#include "dataset/token_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "dataset/ids.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kScanBytes = 1LL << 30;
constexpr std::int64_t kWholeHashBytes = 1 << 20;
constexpr std::int64_t kHashSamples = 256;
constexpr std::int64_t kHashSampleBytes = 64;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  const PhiloxCounter words = philox(philox_counter(value, 0), hash);
  return words.x[0] | static_cast<std::uint64_t>(words.x[1]) << 32;
}

std::uint64_t hash_of(const Shard& shard, std::int64_t begin, std::int64_t end) {
  const auto* text = reinterpret_cast<const char*>(shard.ids());
  return name_hash({text + begin, static_cast<std::size_t>(end - begin)});
}

/// All of a small shard; of a large one places at equal distances, first and last included.
std::uint64_t content_hash(const Shard& shard) {
  const std::int64_t bytes = shard.bytes();
  if (bytes <= kWholeHashBytes) return hash_of(shard, 0, bytes);
  std::uint64_t hash = 0;
  for (std::int64_t i = 0; i < kHashSamples; ++i) {
    const std::int64_t begin = (bytes - kHashSampleBytes) / (kHashSamples - 1) * i;
    hash = mixed(hash, hash_of(shard, begin, begin + kHashSampleBytes));
  }
  return mixed(hash, hash_of(shard, bytes - kHashSampleBytes, bytes));
}

}  // namespace

TokenFiles::TokenFiles(std::vector<Shard> shards, std::int64_t vocabulary)
    : shards_(std::move(shards)), vocabulary_(vocabulary) {
  require(!shards_.empty(), "token source without files");
  std::int64_t tokens = 0;
  for (const Shard& shard : shards_) ends_.push_back(tokens += shard.count);
  check_all_ids();
  for (const Shard& shard : shards_) shard.file.expect(MappedFile::Access::random);
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
  const std::int64_t place = find_bad_id(shard, first, count, vocabulary_);
  const std::string byte =
      shard.offset < 0 ? "" : fmt::format(", byte {}", shard.offset + place * size_of(shard.type));
  const bool raw = shard.format.starts_with("raw");
  fail_file(shard.path, fmt::format("token ids below the vocabulary of {}", vocabulary_),
            fmt::format("id {} at token {}{} ({})", id_at(shard, place), place, byte, shard.format),
            fmt::format("tokenize with the model's vocabulary, or correct model.vocabulary{}",
                        raw ? " or data.dtype" : ""));
}

void TokenFiles::read(std::int64_t first, std::span<std::int32_t> out) const {
  require(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size(),
          "tokens beyond the end of the source");
  auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  while (!out.empty()) {
    const Shard& shard = shards_[index];
    const std::int64_t place = first - (ends_[index] - shard.count);
    const std::int64_t count = std::min(static_cast<std::int64_t>(out.size()), shard.count - place);
    const auto here = out.first(static_cast<std::size_t>(count));
    if (copy_ids(shard, place, here) >= static_cast<std::uint64_t>(vocabulary_)) {
      fail_id(shard, place, count);
    }
    out = out.subspan(here.size());
    first += count;
    ++index;
  }
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
  std::uint64_t hash = name_hash("token files");
  for (const Shard& shard : shards_) {
    hash = mixed(hash, static_cast<std::uint64_t>(shard.count));
    hash = mixed(hash, name_hash(shard.format));
    hash = mixed(hash, content_hash(shard));
  }
  return hash;
}

}  // namespace hyperslab::io
