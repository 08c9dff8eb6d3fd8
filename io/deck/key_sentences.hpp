// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace hyperslab::deck {

/// Meaning of a key, "optimizer.lr", or of a section, "optimizer": one sentence, with its unit.
struct KeySentence {
  std::string_view key;
  std::string_view sentence;
};
/// One for every section and key of schema.hpp, in its order.
[[nodiscard]] std::span<const KeySentence> key_sentences();
/// Those from section `parallel` on, which key_sentences() has, too.
[[nodiscard]] std::span<const KeySentence> training_sentences();

/// The sentence of a key or section; empty if there is none.
[[nodiscard]] std::string_view sentence_of(std::string_view key);

}  // namespace hyperslab::deck
