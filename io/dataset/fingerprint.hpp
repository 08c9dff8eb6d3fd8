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

inline constexpr std::int64_t kFingerprintBlocks = 1024;  ///< of 4 KiB

/// Of bytes that belong to a set of `set_bytes`: all of them, or, of more than 16 MiB in a set
/// above 1 GiB, `blocks` blocks, 2 at least. Uses all OpenMP threads.
[[nodiscard]] std::uint64_t content_hash(std::span<const std::byte> bytes, std::int64_t set_bytes,
                                         std::int64_t blocks = kFingerprintBlocks);

/// Of counts, formats, ids and masks of the shards in this order; what of large ones is read is
/// said at TokenSource::fingerprint(). Uses all OpenMP threads.
[[nodiscard]] std::uint64_t fingerprint_of(std::span<const Shard> shards);

/// The same of each shard alone, reading of it what fingerprint_of() of them all reads.
[[nodiscard]] std::vector<std::uint64_t> fingerprints_of_each(std::span<const Shard> shards);

}  // namespace hyperslab::io
