// SPDX-License-Identifier: Apache-2.0
// A request of the completions interface (OpenAI's POST /v1/completions), as read from its JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {
class ChatEncoder;
}

namespace hyperslab::serve {

/// Model that requests ask for, with its limits.
struct ServedModel {
  std::string name;                          ///< that requests give as "model"
  const io::Tokenizer* tokenizer = nullptr;  ///< special tokens in texts are text
  const io::Tokenizer* parsing = nullptr;    ///< special tokens in texts are parsed; null: refused
  std::int64_t context = 0;                  ///< tokens
  std::int64_t vocabulary = 0;               ///< ids of the model, at least the tokenizer's
  io::TextEnds ends = {};        ///< the tokens that end texts, and the one that begins documents
  std::int64_t token_bytes = 0;  ///< longest_token(); 0: texts of any length are encoded
  const io::ChatEncoder* chats = nullptr;  ///< writes conversations; null: they are refused
  std::string no_chats = {};               ///< why they are, and a remedy
};

/// Bytes of the longest token, its name if it is special: a text of more than context times this
/// does not fit, whatever it says.
[[nodiscard]] std::int64_t longest_token(const io::Tokenizer& tokenizer);

/// A request that is not served. what(): what was expected and found.
class RequestError : public std::runtime_error {
 public:
  /// `status`: of HTTP. `field`: of the request's JSON; empty: none.
  RequestError(int status, const std::string& text, std::string field = {})
      : std::runtime_error(text), status_(status), field_(std::move(field)) {}
  [[nodiscard]] int status() const { return status_; }
  [[nodiscard]] const std::string& field() const { return field_; }

 private:
  int status_;
  std::string field_;
};

struct CompletionRequest {
  generate::Prompts prompts;
  std::int64_t n = 1;  ///< choices for each prompt
  generate::SamplingOptions sampling;
  std::vector<std::string> stops;        ///< texts that end a text, themselves left out
  std::string lead;                      ///< left out where a text begins with it
  bool echo = false;                     ///< the prompt is part of the answer
  std::optional<std::int64_t> logprobs;  ///< likeliest tokens to name; absent: no log-probabilities
  bool stream = false;
  bool stream_usage = false;  ///< counts after the last piece

  [[nodiscard]] std::size_t choices() const { return prompts.size() * static_cast<std::size_t>(n); }
};

/// Limits of one request: choices; and tokens of all choices, prompts included, each as often as
/// the answer names tokens for it (1 + logprobs), which bounds an answer's memory.
inline constexpr std::int64_t kMostChoices = 1024;
inline constexpr std::int64_t kMostRequestTokens = 1 << 20;
/// Likeliest tokens that a request may ask for.
inline constexpr std::int64_t kMostLogprobs = 20;
inline constexpr std::size_t kMostStops = 16;
inline constexpr std::size_t kMostStopBytes = 1024;

/// An object of JSON. Throws RequestError(400) for text that is none, or is nested too deeply.
[[nodiscard]] nlohmann::json parse_object(std::string_view body);

/// Rules for reading the texts of a request.
struct TextRules {
  bool add_special = true;    ///< add_special_tokens: those that the vocabulary puts before a text
  bool parse_special = true;  ///< names of special tokens in a text stand for these; false where
                              ///< the model cannot parse them
};
/// The ids of a text of the model's.
[[nodiscard]] std::vector<std::int32_t> encode_text(const ServedModel& model, std::string_view text,
                                                    const TextRules& rules);
/// Ids of the model's from JSON. Throws RequestError(400) with the field's name.
[[nodiscard]] std::vector<std::int32_t> parse_ids(const ServedModel& model,
                                                  const nlohmann::json& ids,
                                                  const std::string& field);
/// Name of the end-of-text token; empty if there is none.
[[nodiscard]] std::string end_of_text_name(const io::Tokenizer& tokenizer);

/// Prompts are a text, texts, ids or lists of ids; an empty one begins a document. Texts that are
/// too long for the context by their bytes are not encoded. Beside the
/// fields of the interface: top_k, min_p, repetition_penalty, ignore_eos, add_special_tokens,
/// parse_special.
/// Throws RequestError: 400 for fields that are wrong, not known or not supported, 404 for another
/// model than this one.
[[nodiscard]] CompletionRequest parse_completion_request(const ServedModel& model,
                                                         std::string_view body);

}  // namespace hyperslab::serve
