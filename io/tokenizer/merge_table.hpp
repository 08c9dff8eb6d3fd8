// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "tokenizer/bpe_vocabulary.hpp"

namespace hyperslab::io {

/// A well mixed hash of 64 bits (the finalizer of splitmix64, shortened).
[[nodiscard]] inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15U;
  return x ^ (x >> 29);
}

[[nodiscard]] inline std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

/// Rank and result of each merge by its pair: open addressing, at most half full.
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    std::uint32_t rank = kNone;  ///< kNone: no merge
    std::int32_t result = -1;
  };

  explicit MergeTable(std::span<const MergeVocabulary::Merge> merges)
      : slots_(std::bit_ceil(2 * merges.size() + 2)), mask_(slots_.size() - 1) {
    for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
      const std::uint64_t key = pair_key(merges[rank].left, merges[rank].right);
      slots_[index_of(key)] = {key, rank, merges[rank].result};
    }
  }

  [[nodiscard]] const Slot& find(std::int32_t left, std::int32_t right) const {
    return slots_[index_of(pair_key(left, right))];
  }

 private:
  [[nodiscard]] std::size_t index_of(std::uint64_t key) const {
    std::size_t i = mix(key) & mask_;
    while (slots_[i].key != key && slots_[i].rank != kNone) i = (i + 1) & mask_;
    return i;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace hyperslab::io
