// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/character_pairs.hpp"

#include "tokenizer/merge_table.hpp"
#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

std::uint64_t key_of(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32 | right;
}

}  // namespace

std::size_t CharacterPairs::slot_of(std::uint64_t key) const {
  std::size_t i = mix(key) & (far_.size() - 1);
  while (far_[i] != kEmpty && far_[i] != key) i = (i + 1) & (far_.size() - 1);
  return i;
}

bool CharacterPairs::contains_far(std::uint32_t left, std::uint32_t right) const {
  return far_[slot_of(key_of(left, right))] != kEmpty;
}

void CharacterPairs::add(std::uint32_t left, std::uint32_t right) {
  if (near(left) < kNear && near(right) < kNear) {
    near_.set(std::size_t{near(left)} * kNear + near(right));
    return;
  }
  if (contains_far(left, right)) return;
  if (2 * (far_count_ + 1) > far_.size()) {
    std::vector<std::uint64_t> old(2 * far_.size(), kEmpty);
    old.swap(far_);
    for (const std::uint64_t key : old) {
      if (key != kEmpty) far_[slot_of(key)] = key;
    }
  }
  far_[slot_of(key_of(left, right))] = key_of(left, right);
  ++far_count_;
}

void CharacterPairs::add_text(std::string_view text) {
  std::uint32_t left = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character right = character_at(text, at);
    if (at > 0) add(left, right.code);
    left = right.code;
    at += right.bytes;
  }
}

}  // namespace hyperslab::io
