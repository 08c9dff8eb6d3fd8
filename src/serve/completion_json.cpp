// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "token_json.hpp"

namespace hyperslab::serve {
namespace {

using Json = nlohmann::ordered_json;

Json counts(const Usage& usage) {
  Json out = {{"prompt_tokens", usage.prompt_tokens},
              {"completion_tokens", usage.completion_tokens},
              {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  const auto [drafted, accepted] = usage.drafts;
  if (drafted > 0) {
    out["completion_tokens_details"] = {{"accepted_prediction_tokens", accepted},
                                        {"rejected_prediction_tokens", drafted - accepted}};
  }
  return out;
}

std::string completion_token(const io::Tokenizer& tokenizer, std::int32_t id) {
  std::string bytes = token_bytes(tokenizer, id);
  if (as_utf8(bytes) == bytes) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) {
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

Json completion_logprobs(const io::Tokenizer& tokenizer, const AnswerPiece& piece) {
  Json tokens = Json::array();
  Json own = Json::array();
  Json top = Json::array();
  Json offsets = Json::array();
  for (const AnswerToken& token : piece.tokens) {
    tokens.push_back(completion_token(tokenizer, token.id));
    offsets.push_back(token.text_offset);
    if (!token.log_probabilities) {
      own.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    const auto& found = *token.log_probabilities;
    own.push_back(bounded(found.log_probability));
    Json likeliest = Json::object();
    for (const auto& [id, log_probability] : found.top) {
      likeliest[completion_token(tokenizer, id)] = bounded(log_probability);
    }
    likeliest[completion_token(tokenizer, token.id)] = own.back();
    top.push_back(std::move(likeliest));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

Json completion_choice(const io::Tokenizer& tokenizer, const AnswerPiece& piece,
                       bool has_logprobs) {
  return {{"index", piece.choice},
          {"text", piece.text},
          {"logprobs", has_logprobs ? completion_logprobs(tokenizer, piece) : Json()},
          {"finish_reason", finish_name(piece.finish)}};
}

std::vector<Json> completion_pieces(const io::Tokenizer& tokenizer, const AnswerPiece& piece,
                                    bool has_logprobs, bool /*is_first*/) {
  return {completion_choice(tokenizer, piece, has_logprobs)};
}

}  // namespace

std::string token_bytes(const io::Tokenizer& tokenizer, std::int32_t id) {
  const bool is_end = id == tokenizer.end_of_text();
  return is_end ? end_of_text_name(tokenizer) : tokenizer.decode(id);
}

std::string as_utf8(const std::string& bytes) {
  io::Utf8Stream stream;
  std::string text = stream.push(bytes);
  text += stream.finish();
  return text;
}

Json finish_name(Finish finish) {
  if (finish == Finish::stop) return "stop";
  if (finish == Finish::length) return "length";
  return nullptr;
}

const AnswerFormat& completion_format() {
  static constexpr AnswerFormat kFormat = {.id = "cmpl",
                                           .object = "text_completion",
                                           .chunk = "text_completion",
                                           .whole = completion_choice,
                                           .streamed = completion_pieces};
  return kFormat;
}

AnswerJson::AnswerJson(AnswerHead head, const io::Tokenizer& tokenizer,
                       const CompletionRequest& request, const AnswerFormat& format)
    : head_(std::move(head)),
      tokenizer_(tokenizer),
      format_(format),
      has_logprobs_(request.logprobs.has_value()),
      choices_(request.stream ? 0 : request.choices()),
      has_begun_(request.choices(), false) {
  for (std::size_t i = 0; i < choices_.size(); ++i) choices_[i].choice = i;
}

void AnswerJson::add(AnswerPiece piece) {
  AnswerPiece& whole = choices_.at(piece.choice);
  whole.text += piece.text;
  std::ranges::move(piece.tokens, std::back_inserter(whole.tokens));
  whole.finish = piece.finish;
}

Json AnswerJson::frame(std::string_view object) const {
  return {{"id", head_.id},
          {"object", object},
          {"created", head_.created},
          {"model", head_.model},
          {"choices", Json::array()}};
}

Json AnswerJson::whole(const Usage& usage) const {
  Json out = frame(format_.object);
  for (const AnswerPiece& piece : choices_) {
    out["choices"].push_back(format_.whole(tokenizer_, piece, has_logprobs_));
  }
  out["usage"] = counts(usage);
  return out;
}

std::vector<Json> AnswerJson::chunks(const AnswerPiece& piece) {
  const bool is_first = !has_begun_.at(piece.choice);
  has_begun_[piece.choice] = true;
  std::vector<Json> all;
  for (Json& choice : format_.streamed(tokenizer_, piece, has_logprobs_, is_first)) {
    all.push_back(frame(format_.chunk));
    all.back()["choices"].push_back(std::move(choice));
  }
  return all;
}

Json AnswerJson::usage_chunk(const Usage& usage) const {
  Json out = frame(format_.chunk);
  out["usage"] = counts(usage);
  return out;
}

Json error_json(const RequestError& error) {
  constexpr int kServersFault = 500;
  const bool is_callers = error.status() < kServersFault;
  const Json field = error.field().empty() ? Json() : Json(error.field());
  return {{"error",
           {{"message", error.what()},
            {"type", is_callers ? "invalid_request_error" : "server_error"},
            {"param", field},
            {"code", error.status()}}}};
}

}  // namespace hyperslab::serve
