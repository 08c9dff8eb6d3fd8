// SPDX-License-Identifier: Apache-2.0
// Answers in the JSON of the completions interface.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hyperslab/serve/completion.hpp"
#include "hyperslab/serve/completion_request.hpp"

namespace hyperslab::serve {

/// Fields that all pieces of one answer share.
struct AnswerHead {
  std::string id;
  std::string model;
  std::int64_t created = 0;  ///< seconds since 1970
};

/// All pieces of an answer, put together by choice. Of `logprobs`: tokens, token_logprobs,
/// top_logprobs (the asked number of likeliest tokens and the token itself; null where a text
/// begins) and text_offset, in nats and characters. A token that is no valid UTF-8 of its own is
/// called bytes:\xHH...; a log-probability below -9999 is -9999, as JSON has no infinity.
class AnswerJson {
 public:
  AnswerJson(AnswerHead head, const io::Tokenizer& tokenizer, const CompletionRequest& request);

  void add(AnswerPiece piece);
  [[nodiscard]] nlohmann::ordered_json whole(const Usage& usage) const;
  /// One piece alone, of a streamed answer.
  [[nodiscard]] nlohmann::ordered_json chunk(const AnswerPiece& piece) const;
  /// Last piece of a streamed answer whose request asks for its usage.
  [[nodiscard]] nlohmann::ordered_json usage_chunk(const Usage& usage) const;

 private:
  [[nodiscard]] nlohmann::ordered_json frame() const;
  [[nodiscard]] nlohmann::ordered_json choice(const AnswerPiece& piece) const;
  [[nodiscard]] std::string name(std::int32_t id) const;

  AnswerHead head_;
  const io::Tokenizer& tokenizer_;
  bool has_logprobs_;
  std::vector<AnswerPiece> choices_;
};

/// {"error": {message, type, param, code}}.
[[nodiscard]] nlohmann::ordered_json error_json(const RequestError& error);

}  // namespace hyperslab::serve
