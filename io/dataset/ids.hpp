// SPDX-License-Identifier: Apache-2.0
// Loops over the ids of a shard; private to io.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataset/shard.hpp"

namespace hyperslab::io {

/// Copies ids [first, first + out.size()) of the shard and returns the largest, in which negative
/// ids count as larger than any other.
std::uint64_t copy_ids(const Shard& shard, std::int64_t first, std::span<std::int32_t> out);

/// The largest id of the shard, as above, by all OpenMP threads.
[[nodiscard]] std::uint64_t largest_id(const Shard& shard);

/// The first index in [first, first + count) whose id is not in [0, vocabulary), or -1.
[[nodiscard]] std::int64_t find_bad_id(const Shard& shard, std::int64_t first, std::int64_t count,
                                       std::int64_t vocabulary);

/// 0 and the index after every `end_token` but a last one.
[[nodiscard]] std::vector<std::int64_t> documents_by_end(const Shard& shard,
                                                         std::int32_t end_token);

[[nodiscard]] std::int64_t id_at(const Shard& shard, std::int64_t index);

}  // namespace hyperslab::io
