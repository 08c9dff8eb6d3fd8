// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace hyperslab::deck {

/// What a key, "optimizer.lr", or a section, "optimizer", means: one sentence, with its unit.
struct KeySentence {
  std::string_view key;
  std::string_view sentence;
};
/// One for every section and key of schema.hpp, in its order.
[[nodiscard]] std::span<const KeySentence> key_sentences();

/// Empty if there is none.
[[nodiscard]] std::string_view sentence_of(std::string_view key);

}  // namespace hyperslab::deck
