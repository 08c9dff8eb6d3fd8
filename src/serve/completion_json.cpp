// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace hyperslab::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastLogProbability = -9999;

bool is_valid_utf8(const std::string& bytes) {
  io::Utf8Stream stream;
  return stream.push(bytes) + stream.finish() == bytes;
}

Json finish_name(Finish finish) {
  if (finish == Finish::stop) return "stop";
  if (finish == Finish::length) return "length";
  return nullptr;
}

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

}  // namespace

AnswerJson::AnswerJson(AnswerHead head, const io::Tokenizer& tokenizer,
                       const CompletionRequest& request)
    : head_(std::move(head)),
      tokenizer_(tokenizer),
      has_logprobs_(request.logprobs.has_value()),
      choices_(request.stream ? 0 : request.choices()) {
  for (std::size_t i = 0; i < choices_.size(); ++i) choices_[i].choice = i;
}

void AnswerJson::add(AnswerPiece piece) {
  AnswerPiece& whole = choices_.at(piece.choice);
  whole.text += piece.text;
  std::ranges::move(piece.tokens, std::back_inserter(whole.tokens));
  whole.finish = piece.finish;
}

std::string AnswerJson::name(std::int32_t id) const {
  std::string bytes = tokenizer_.decode(id);
  if (bytes.empty() && id == tokenizer_.end_of_text()) return end_of_text_name(tokenizer_);
  if (is_valid_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) {
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

Json AnswerJson::choice(const AnswerPiece& piece) const {
  Json out = {{"index", piece.choice}, {"text", piece.text}, {"logprobs", nullptr}};
  if (has_logprobs_) {
    Json tokens = Json::array();
    Json own = Json::array();
    Json top = Json::array();
    Json offsets = Json::array();
    for (const AnswerToken& token : piece.tokens) {
      tokens.push_back(name(token.id));
      offsets.push_back(token.text_offset);
      if (!token.log_probabilities) {
        own.push_back(nullptr);
        top.push_back(nullptr);
        continue;
      }
      const auto& found = *token.log_probabilities;
      own.push_back(std::max(found.log_probability, kLeastLogProbability));
      Json likeliest = Json::object();
      for (const auto& [id, log_probability] : found.top) {
        likeliest[name(id)] = std::max(log_probability, kLeastLogProbability);
      }
      likeliest[name(token.id)] = own.back();
      top.push_back(std::move(likeliest));
    }
    out["logprobs"] = {{"tokens", std::move(tokens)},
                       {"token_logprobs", std::move(own)},
                       {"top_logprobs", std::move(top)},
                       {"text_offset", std::move(offsets)}};
  }
  out["finish_reason"] = finish_name(piece.finish);
  return out;
}

Json AnswerJson::frame() const {
  return {{"id", head_.id},
          {"object", "text_completion"},
          {"created", head_.created},
          {"model", head_.model},
          {"choices", Json::array()}};
}

Json AnswerJson::whole(const Usage& usage) const {
  Json out = frame();
  for (const AnswerPiece& piece : choices_) out["choices"].push_back(choice(piece));
  out["usage"] = counts(usage);
  return out;
}

Json AnswerJson::chunk(const AnswerPiece& piece) const {
  Json out = frame();
  out["choices"].push_back(choice(piece));
  return out;
}

Json AnswerJson::usage_chunk(const Usage& usage) const {
  Json out = frame();
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
