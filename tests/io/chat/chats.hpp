// SPDX-License-Identifier: Apache-2.0
// Conversations and their renderings as tests write them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hyperslab/io/chat.hpp"
#include "hyperslab/io/chat_tokens.hpp"

namespace hyperslab::test {

using Chat = std::vector<io::ChatMessage>;

inline io::ChatMessage of_system(const std::string& text) {
  return {.role = io::ChatRole::system, .text = text};
}
inline io::ChatMessage of_user(const std::string& text) {
  return {.role = io::ChatRole::user, .text = text};
}
inline io::ChatMessage of_assistant(const std::string& text) {
  return {.role = io::ChatRole::assistant, .text = text};
}

/// All pieces as one text, with <bos> and <eos> for tokens that only a vocabulary names; with
/// `brackets` trained pieces stand in « and ».
inline std::string text_of(const std::vector<io::ChatPiece>& pieces, bool brackets = false) {
  std::string text;
  bool is_trained = false;
  const auto mark = [&](bool now) {
    if (brackets && now != is_trained) text += now ? "«" : "»";
    is_trained = now;
  };
  for (const io::ChatPiece& piece : pieces) {
    mark(piece.is_trained);
    if (piece.kind == io::ChatPiece::Kind::bos) text += "<bos>";
    if (piece.kind == io::ChatPiece::Kind::eos) text += "<eos>";
    text += piece.text;
  }
  mark(false);
  return text;
}

/// A line of JSON lines with these messages, as pairs of role and content.
inline std::string row_of(const std::vector<std::pair<std::string, std::string>>& messages) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [role, content] : messages) {
    list.push_back({{"role", role}, {"content", content}});
  }
  return nlohmann::json{{"messages", list}}.dump() + "\n";
}

}  // namespace hyperslab::test
