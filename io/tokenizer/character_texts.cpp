// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/character_texts.hpp"

#include <charconv>
#include <optional>
#include <system_error>

#include "tokenizer/character_normalizer.hpp"

namespace hyperslab::io {
namespace {

/// The byte that a token such as <0xC3> stands for.
std::optional<char> byte_of(const std::string& token) {
  constexpr std::size_t kBytes = 6;
  if (token.size() != kBytes || !token.starts_with("<0x") || token.back() != '>') return {};
  std::uint8_t byte = 0;
  const char* const digits = token.data() + 3;
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc() || end != digits + 2) return {};
  return static_cast<char>(byte);
}

}  // namespace

/// An added token that normalized text is searched for is that text, as in the package tokenizers.
CharacterTexts::CharacterTexts(const CharacterVocabulary& vocabulary) : vocabulary_(vocabulary) {
  for (const AddedToken& token : vocabulary_.added) {
    std::string text = vocabulary_.text_in_search(token);
    if (!token.special && text != token.text) renamed_.emplace(token.id, std::move(text));
  }
}

const std::string& CharacterTexts::name(std::int32_t id) const {
  const auto found = renamed_.find(id);
  return found == renamed_.end() ? vocabulary_.tokens[static_cast<std::size_t>(id)] : found->second;
}

std::string CharacterTexts::inside(std::int32_t id) const {
  const std::string& token = name(id);
  const TokenRules& rules = vocabulary_.rules;
  if (rules.has_bytes) {
    if (const std::optional<char> byte = byte_of(token)) return {*byte};
  }
  if (rules.from.empty()) return token;
  std::string text;
  append_replaced(token, rules.from, rules.to, text);
  return text;
}

std::string CharacterTexts::first(std::int32_t id) const {
  const TokenRules& rules = vocabulary_.rules;
  std::string text;
  if (!rules.drops_in_first.empty()) {
    append_replaced(name(id), rules.drops_in_first, "", text);
    return text;
  }
  text = inside(id);
  if (rules.strips_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

}  // namespace hyperslab::io
