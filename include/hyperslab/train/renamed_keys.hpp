// SPDX-License-Identifier: Apache-2.0
// Decks of earlier programs, in checkpoints and elsewhere, are read as if they had been written
// with the names of today.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace hyperslab::train {

struct RenamedKey {
  std::string_view was, is;
};
inline constexpr std::array kRenamedKeys = {
    RenamedKey{"spikes.max_walk_backs", "spikes.max_roll_backs"}};

struct RenamedValue {
  std::string_view key, was, is;
};
inline constexpr std::array kRenamedValues = {
    RenamedValue{"spikes.policy", "walk_back", "roll_back"}};

/// The name that "section.key" has today.
[[nodiscard]] constexpr std::string_view current_key(std::string_view full_key) {
  const auto* const found = std::ranges::find(kRenamedKeys, full_key, &RenamedKey::was);
  return found == kRenamedKeys.end() ? full_key : found->is;
}

/// The name that "section.key" had before; empty if it had no other.
[[nodiscard]] constexpr std::string_view former_key(std::string_view full_key) {
  const auto* const found = std::ranges::find(kRenamedKeys, full_key, &RenamedKey::is);
  return found == kRenamedKeys.end() ? std::string_view() : found->was;
}

/// Likewise the text of the value of such a key.
[[nodiscard]] constexpr std::string_view current_value(std::string_view full_key,
                                                       std::string_view text) {
  const auto* const found = std::ranges::find_if(kRenamedValues, [&](const RenamedValue& value) {
    return value.key == full_key && value.was == text;
  });
  return found == kRenamedValues.end() ? text : found->is;
}

}  // namespace hyperslab::train
