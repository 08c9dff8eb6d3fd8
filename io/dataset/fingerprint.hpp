// SPDX-License-Identifier: Apache-2.0
// Numbers that tell contents apart; private to io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dataset/shard.hpp"

namespace hyperslab::io {

/// Another number for another hash, value or order of calls.
[[nodiscard]] std::uint64_t mixed(std::uint64_t hash, std::uint64_t value);

inline constexpr std::int64_t kFingerprintBlocks = 1024;  ///< number of blocks of 4 KiB

/// Hash of bytes that belong to a set of `set_bytes`. Reads them all, or `blocks` blocks (at least
/// 2) if they exceed 16 MiB and the set exceeds 1 GiB. Uses all OpenMP threads.
[[nodiscard]] std::uint64_t content_hash(std::span<const std::byte> bytes, std::int64_t set_bytes,
                                         std::int64_t blocks = kFingerprintBlocks);

/// Hash of counts, formats, ids and masks of the shards in this order. TokenSource::fingerprint()
/// says which parts of large shards it reads. Uses all OpenMP threads.
[[nodiscard]] std::uint64_t fingerprint_of(std::span<const Shard> shards);

/// One hash for each shard alone, from the bytes that fingerprint_of(shards) reads.
[[nodiscard]] std::vector<std::uint64_t> fingerprints_of_each(std::span<const Shard> shards);

}  // namespace hyperslab::io
