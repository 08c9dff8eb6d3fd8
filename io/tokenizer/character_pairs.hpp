// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// A set of pairs of characters that stand side by side.
class CharacterPairs {
 public:
  void add(std::uint32_t left, std::uint32_t right);
  /// All pairs in `text`.
  void add_text(std::string_view text);
  [[nodiscard]] bool contains(std::uint32_t left, std::uint32_t right) const {
    const std::uint32_t near_left = near(left);
    const std::uint32_t near_right = near(right);
    if (near_left < kNear && near_right < kNear) return near_[near_left * kNear + near_right];
    return contains_far(left, right);
  }

 private:
  static constexpr std::uint32_t kAscii = 128;
  static constexpr std::uint32_t kNear = kAscii + 1;
  static constexpr std::uint32_t kSpaceMark = 0x2581;  ///< SentencePiece's for a space
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  /// An index below kNear for the most frequent characters.
  static std::uint32_t near(std::uint32_t code) {
    return code < kAscii ? code : code == kSpaceMark ? kAscii : kNear;
  }
  [[nodiscard]] bool contains_far(std::uint32_t left, std::uint32_t right) const;
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const;

  std::bitset<std::size_t{kNear} * kNear> near_;
  std::vector<std::uint64_t> far_ = std::vector<std::uint64_t>(16, kEmpty);  ///< at most half full
  std::size_t far_count_ = 0;
};

}  // namespace hyperslab::io
