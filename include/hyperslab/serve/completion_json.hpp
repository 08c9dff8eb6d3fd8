// SPDX-License-Identifier: Apache-2.0
// Answers in the JSON of the interfaces for completions and for chats.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
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

/// The way in which an interface writes answers.
struct AnswerFormat {
  std::string_view id;      ///< beginning of an answer's id
  std::string_view object;  ///< name of a whole answer
  std::string_view chunk;   ///< name of a streamed piece
  /// A choice of a whole answer.
  nlohmann::ordered_json (*whole)(const io::Tokenizer& tokenizer, const AnswerPiece& piece,
                                  bool has_logprobs);
  /// A streamed piece of a choice, as objects that are sent one after the other.
  std::vector<nlohmann::ordered_json> (*streamed)(const io::Tokenizer& tokenizer,
                                                  const AnswerPiece& piece, bool has_logprobs,
                                                  bool is_first);
};

/// Completions. `logprobs` has tokens, token_logprobs, top_logprobs (the asked number of likeliest
/// tokens and the token itself; null where a text begins) and text_offset, in nats and characters.
/// A token that is no valid UTF-8 of its own is called bytes:\xHH...
[[nodiscard]] const AnswerFormat& completion_format();
/// Chats. A stream begins each choice with its role, and ends it with an empty piece that has the
/// reason. `logprobs` has `content`, a list of token (U+FFFD for what is no UTF-8), logprob, bytes
/// and top_logprobs.
[[nodiscard]] const AnswerFormat& chat_format();

/// All pieces of an answer, put together by choice. A log-probability below -9999 is -9999, as JSON
/// has no infinity.
class AnswerJson {
 public:
  /// `format` and `tokenizer` must outlive this.
  AnswerJson(AnswerHead head, const io::Tokenizer& tokenizer, const CompletionRequest& request,
             const AnswerFormat& format = completion_format());

  void add(AnswerPiece piece);
  [[nodiscard]] nlohmann::ordered_json whole(const Usage& usage) const;
  /// One piece alone, of a streamed answer: objects to send one after the other.
  [[nodiscard]] std::vector<nlohmann::ordered_json> chunks(const AnswerPiece& piece);
  /// Last piece of a streamed answer whose request asks for its usage.
  [[nodiscard]] nlohmann::ordered_json usage_chunk(const Usage& usage) const;

 private:
  [[nodiscard]] nlohmann::ordered_json frame(std::string_view object) const;

  AnswerHead head_;
  const io::Tokenizer& tokenizer_;
  const AnswerFormat& format_;
  bool has_logprobs_;
  std::vector<AnswerPiece> choices_;  ///< those of an answer that is not streamed
  std::vector<bool> has_begun_;       ///< by choice, of a stream
};

/// {"error": {message, type, param, code}}.
[[nodiscard]] nlohmann::ordered_json error_json(const RequestError& error);

}  // namespace hyperslab::serve
