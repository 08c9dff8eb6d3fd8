// SPDX-License-Identifier: Apache-2.0
#include "dataset/fingerprint.hpp"

#include <algorithm>
#include <vector>

#include "files/crc32c.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kWholeSetBytes = 1LL << 30;
constexpr std::int64_t kWholeFileBytes = 16 << 20;
constexpr std::int64_t kChunkBytes = 1 << 20;  // piece of a shard that is read whole
constexpr std::int64_t kBlockBytes = 4 << 10;

/// Checksums of `count` chunks of `bytes_of_chunk` bytes; chunk i begins at begin_of(i).
template <class BeginOf>
std::uint64_t hash_chunks(std::span<const std::byte> bytes, std::int64_t count,
                          std::int64_t bytes_of_chunk, BeginOf begin_of) {
  std::vector<std::uint32_t> sums(static_cast<std::size_t>(count));
  const auto size = static_cast<std::int64_t>(bytes.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = begin_of(i);
    sums[static_cast<std::size_t>(i)] = crc32c(
        bytes.data() + begin, static_cast<std::size_t>(std::min(bytes_of_chunk, size - begin)));
  }
  std::uint64_t hash = 0;
  for (const std::uint32_t sum : sums) hash = mixed(hash, sum);
  return hash;
}

std::uint64_t hash_whole(std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  return hash_chunks(bytes, (size + kChunkBytes - 1) / kChunkBytes, kChunkBytes,
                     [](std::int64_t i) { return i * kChunkBytes; });
}

/// First and last block, and one at an offset of its own in each of the equal parts between them.
std::uint64_t hash_blocks(std::span<const std::byte> bytes, std::int64_t blocks) {
  const std::int64_t last = static_cast<std::int64_t>(bytes.size()) - kBlockBytes;
  const std::int64_t part = last / (blocks - 1);
  return hash_chunks(bytes, blocks, kBlockBytes, [=](std::int64_t i) {
    if (i == 0 || i == blocks - 1) return i == 0 ? std::int64_t{0} : last;
    const std::uint64_t jitter = mixed(static_cast<std::uint64_t>(i), 1);
    return i * part +
           static_cast<std::int64_t>(jitter % static_cast<std::uint64_t>(part - kBlockBytes));
  });
}

std::int64_t bytes_of(std::span<const Shard> shards) {
  std::int64_t all = 0;
  for (const Shard& shard : shards) {
    all += shard.bytes() + (shard.has_mask ? shard.count : 0);
    for_each_column(shard, [&](const ShardColumn& column) { all += std::ssize(column.bytes); });
  }
  return all;
}

/// `hash` and the shard's contents; `all`: bytes of the set that it belongs to.
std::uint64_t mixed_with(std::uint64_t hash, const Shard& shard, std::int64_t all) {
  const auto hash_of = [all](const std::byte* begin, std::int64_t size) {
    return content_hash(std::span(begin, static_cast<std::size_t>(size)), all);
  };
  hash = mixed(hash, static_cast<std::uint64_t>(shard.count));
  hash = mixed(hash, name_hash(shard.format));
  hash = mixed(hash, hash_of(shard.ids(), shard.bytes()));
  if (shard.has_mask) hash = mixed(hash, hash_of(shard.mask(), shard.count));
  for_each_column(shard, [&](const ShardColumn& column) {
    hash = mixed(hash, hash_of(column.bytes.data(), std::ssize(column.bytes)));
  });
  return hash;
}

}  // namespace

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  const PhiloxCounter words = philox(philox_counter(value, 0), hash);
  return words.x[0] | static_cast<std::uint64_t>(words.x[1]) << 32;
}

std::uint64_t content_hash(std::span<const std::byte> bytes, std::int64_t set_bytes,
                           std::int64_t blocks) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  return set_bytes <= kWholeSetBytes || size <= kWholeFileBytes ? hash_whole(bytes)
                                                                : hash_blocks(bytes, blocks);
}

std::uint64_t fingerprint_of(std::span<const Shard> shards) {
  const std::int64_t all = bytes_of(shards);
  std::uint64_t hash = name_hash("token files");
  for (const Shard& shard : shards) hash = mixed_with(hash, shard, all);
  return hash;
}

std::vector<std::uint64_t> fingerprints_of_each(std::span<const Shard> shards) {
  const std::int64_t all = bytes_of(shards);
  std::vector<std::uint64_t> hashes;
  for (const Shard& shard : shards) {
    hashes.push_back(mixed_with(name_hash("token files"), shard, all));
  }
  return hashes;
}

}  // namespace hyperslab::io
