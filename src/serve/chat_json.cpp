// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "hyperslab/serve/completion_json.hpp"
#include "token_json.hpp"

namespace hyperslab::serve {
namespace {

using Json = nlohmann::ordered_json;

Json chat_token(const io::Tokenizer& tokenizer, std::int32_t id, double log_probability) {
  const std::string bytes = token_bytes(tokenizer, id);
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", as_utf8(bytes)},
          {"logprob", bounded(log_probability)},
          {"bytes", std::move(numbers)}};
}

Json chat_logprobs(const io::Tokenizer& tokenizer, const AnswerPiece& piece) {
  Json content = Json::array();
  for (const AnswerToken& token : piece.tokens) {
    if (!token.log_probabilities) continue;  // a prompt's, which chats do not repeat
    Json top = Json::array();
    for (const auto& [id, log_probability] : token.log_probabilities->top) {
      top.push_back(chat_token(tokenizer, id, log_probability));
    }
    content.push_back(chat_token(tokenizer, token.id, token.log_probabilities->log_probability));
    content.back()["top_logprobs"] = std::move(top);
  }
  return {{"content", std::move(content)}};
}

Json chat_choice(const io::Tokenizer& tokenizer, const AnswerPiece& piece, bool has_logprobs) {
  return {{"index", piece.choice},
          {"message", {{"role", "assistant"}, {"content", piece.text}}},
          {"logprobs", has_logprobs ? chat_logprobs(tokenizer, piece) : Json()},
          {"finish_reason", finish_name(piece.finish)}};
}

std::vector<Json> chat_pieces(const io::Tokenizer& tokenizer, const AnswerPiece& piece,
                              bool has_logprobs, bool is_first) {
  std::vector<Json> all;
  const auto add = [&](Json delta, Json logprobs, Finish finish) {
    all.push_back({{"index", piece.choice},
                   {"delta", std::move(delta)},
                   {"logprobs", std::move(logprobs)},
                   {"finish_reason", finish_name(finish)}});
  };
  if (is_first) add({{"role", "assistant"}, {"content", ""}}, nullptr, Finish::none);
  if (!piece.text.empty() || !piece.tokens.empty()) {
    add({{"content", piece.text}}, has_logprobs ? chat_logprobs(tokenizer, piece) : Json(),
        Finish::none);
  }
  if (piece.finish != Finish::none) add(Json::object(), nullptr, piece.finish);
  return all;
}

}  // namespace

const AnswerFormat& chat_format() {
  static constexpr AnswerFormat kFormat = {.id = "chatcmpl",
                                           .object = "chat.completion",
                                           .chunk = "chat.completion.chunk",
                                           .whole = chat_choice,
                                           .streamed = chat_pieces};
  return kFormat;
}

}  // namespace hyperslab::serve
