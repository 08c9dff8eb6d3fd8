// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "chat/chat_run.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/chat_tokens.hpp"
#include "tokenizer/added_tokens.hpp"

namespace hyperslab::io {
namespace {

using PieceKind = ChatPiece::Kind;

constexpr const char* kEndOfBytes = "<|endoftext|>";  // which decodes to nothing

[[noreturn]] void fail_chat_token(const std::string& vocabulary, std::string_view form,
                                  const std::string& token) {
  throw Error(ExitCode::data,
              fmt::format("vocabulary '{}': expected {} for the chat template {}, found none; give "
                          "--chat-template plain, or train a vocabulary with tokenize "
                          "--train-vocab and --special",
                          vocabulary, token, form));
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const std::string& vocabulary,
                         const ChatTemplate& form)
    : tokenizer_(tokenizer), vocabulary_(vocabulary), form_(form) {
  for (const std::string_view name : form.required_tokens()) {
    const auto token = tokenizer.special_token(name);
    if (!token) fail_chat_token(vocabulary, form.name(), fmt::format("a special token '{}'", name));
    tokens_.emplace(name, *token);
  }
  for (const std::string_view name : form.optional_tokens()) {
    if (const auto token = tokenizer.special_token(name)) tokens_.emplace(name, *token);
  }
  if (form.is_rendered()) {
    add_all_tokens();
    return;
  }
  const auto named = [&](std::int32_t id) {
    const auto token = tokenizer.special_token(tokenizer.decode(id));
    return token && token->id == id ? *token : SpecialToken{.id = id};
  };
  bos_ = named(tokenizer.named_tokens().bos);
  eos_ = named(tokenizer.named_tokens().eos);
  const ChatMessage turns[] = {{.role = ChatRole::user}, {.role = ChatRole::assistant}};
  for (const ChatPiece& piece : form.render(turns, TrainOn::all)) (void)token_of(piece);
  for (const ChatPiece& piece : form.render(turns, TrainOn::assistant)) {
    const SpecialToken* token = piece.is_trained ? token_of(piece) : nullptr;
    if (token != nullptr) turn_ends_.push_back(token->id);
  }
}

void ChatEncoder::add_all_tokens() {
  search_ = std::make_shared<AddedTokenSearch>();
  const auto add = [&](const std::string& name) {
    const auto token = tokenizer_.special_token(name);
    if (!token || name.empty() || !tokens_.emplace(name, *token).second) return;
    search_->add({.text = name, .id = token->id}, name);
  };
  add(kEndOfBytes);
  for (std::int32_t id = 0; id < tokenizer_.vocabulary(); ++id) {
    if (tokenizer_.is_special(id)) add(tokenizer_.decode(id));
  }
}

/// The token that a piece is; null for text, and for words that this vocabulary takes as text.
const SpecialToken* ChatEncoder::token_of(const ChatPiece& piece) const {
  if (piece.kind == PieceKind::text) return nullptr;
  if (piece.kind == PieceKind::token) {
    const auto found = tokens_.find(piece.text);
    return found == tokens_.end() ? nullptr : &found->second;
  }
  const SpecialToken& token = piece.kind == PieceKind::bos ? bos_ : eos_;
  if (token.id < 0) {
    fail_chat_token(vocabulary_, form_.name(),
                    piece.kind == PieceKind::bos ? "a token that begins a text (bos_token)"
                                                 : "a token that ends a text (eos_token)");
  }
  return &token;
}

ChatTokens ChatEncoder::encode(std::span<const ChatPiece> pieces) const {
  ChatTokens out;
  ChatRun run(tokenizer_);
  for (const ChatPiece& piece : pieces) {
    const SpecialToken* token = token_of(piece);
    if (token == nullptr) {
      run.add(piece.text, piece.is_trained);
      continue;
    }
    if (token->takes_before) run.drop_last_spaces();
    run.finish(out);
    out.ids.push_back(token->id);
    out.is_trained.push_back(piece.is_trained ? 1 : 0);
    run.begin(TextPlace::after_token, token->takes_after);
  }
  run.finish(out);
  return out;
}

ChatTokens ChatEncoder::encode_rendered(std::span<const ChatPiece> parts, TrainOn train_on) const {
  require(form_.is_rendered(), "a rendering for another template");
  const auto last = std::ranges::find(parts.rbegin(), parts.rend(), true, &ChatPiece::is_trained);
  const auto before = std::ranges::find(last, parts.rend(), false, &ChatPiece::is_trained);
  const auto first_trained = static_cast<std::size_t>(parts.rend() - before);
  std::vector<ChatPiece> pieces;
  std::vector<AddedTokenSearch::Part> found;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool counts = parts[i].is_trained && (train_on != TrainOn::last || i >= first_trained);
    search_->split(parts[i].text, found);
    for (const AddedTokenSearch::Part& part : found) {
      const bool is_trained = counts || train_on == TrainOn::all;
      if (part.id < 0) {
        pieces.push_back({PieceKind::text, std::string(part.text), is_trained});
        continue;
      }
      const std::string name = tokenizer_.decode(part.id);
      pieces.push_back({PieceKind::token, name.empty() ? kEndOfBytes : name, is_trained});
    }
  }
  return encode(pieces);
}

}  // namespace hyperslab::io
