// SPDX-License-Identifier: Apache-2.0
// The keys and rules of decks as text to read, and suggestions for unknown words.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::deck {

/// A key of a deck.
struct KeyInfo {
  std::string key;                        ///< with its section: "optimizer.lr"
  std::string values;                     ///< "number, more than 0", "`auto`, `cpu` or `cuda`"
  std::vector<std::string_view> choices;  ///< the words that it takes; empty: not only words
  /// Its default, empty if it has none and must be given; of the families gpt2, llama and vit.
  std::string gpt2_default;
  std::string llama_default;
  std::string vit_default;
  std::string_view sentence;  ///< meaning of the key, with its unit
};
struct SectionInfo {
  std::string_view name;
  std::string_view sentence;
  std::vector<KeyInfo> keys;
};
/// In the order of a resolved deck.
[[nodiscard]] std::span<const SectionInfo> sections();

/// Keys of one section, or of all if `section` is empty, for a terminal: name, values, default
/// and sentence of each. Throws Error(usage) for an unknown section.
[[nodiscard]] std::string keys_text(std::string_view section);
/// Keys of one section, or of all, as markdown: a heading and a table for every section.
[[nodiscard]] std::string keys_markdown(std::string_view section);
/// Rules about keys of one section, or of all, for a terminal. Throws Error(usage) for an unknown
/// section.
[[nodiscard]] std::string rules_text(std::string_view section);
/// Rules as a markdown table: the key, and the condition that must hold.
[[nodiscard]] std::string rules_table(std::string_view section = "");

/// The known word that `word` may mean: one that begins with it (from three letters), else the
/// nearest by edits; empty if none is near enough.
[[nodiscard]] std::string_view nearest_word(std::string_view word,
                                            std::span<const std::string_view> known);
/// True if `key` is "section.key" of a deck.
[[nodiscard]] bool is_key(std::string_view key);
/// The key, "section.key", that a word with or without a section may mean; empty if none is near
/// enough. A key of that name in any section comes first.
[[nodiscard]] std::string meant_key(std::string_view word);

}  // namespace hyperslab::deck
