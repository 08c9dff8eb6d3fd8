// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/generate/log_probabilities.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "text_output.hpp"

namespace hyperslab::cli {

/// Prints texts to stdout, each prompt and its continuation, in the order of the prompts: the first
/// one that has not ended as it comes, the others when it is their turn. All of it is valid
/// UTF-8; on a terminal '?' stands for control characters, which could steer it.
class Completions final : public generate::TokenListener {
 public:
  /// `stops`: texts that end a text. `logprobs`: likeliest tokens to keep for every token with
  /// their log-probabilities; absent: none are computed. `tokenizer` must outlive this.
  Completions(const io::Tokenizer& tokenizer, const std::vector<std::string>& prompts,
              const std::vector<std::string>& stops, std::int64_t max_tokens,
              std::optional<std::int64_t> logprobs = {});

  bool token(std::size_t prompt, const generate::NextToken& next) override;
  void end(std::size_t prompt) override;
  [[nodiscard]] bool wants_logits() const override { return logprobs_.has_value(); }

  /// A list of {prompt, text, prompt_ids, ids, finish}; finish: stop or count. With `logprobs` also
  /// logprobs (of ids) and top_logprobs (of each a list of {id, logprob}). `ids`: of the prompts,
  /// put first as `id`; or empty.
  [[nodiscard]] nlohmann::ordered_json to_json(const generate::Prompts& prompts,
                                               const std::vector<nlohmann::json>& ids = {}) const;

 private:
  struct Completion {
    std::string prompt;  ///< valid UTF-8
    io::TextDecoder decoder;
    io::StopSearch search;
    io::Utf8Stream stream;
    std::string text;         ///< after the prompt, valid UTF-8
    std::size_t printed = 0;  ///< bytes of it
    std::vector<std::int32_t> ids;
    std::vector<generate::TokenLogProbabilities> log_probabilities;  ///< one for each of ids
    bool ended = false;
  };
  void print();

  std::int64_t max_tokens_;
  std::optional<std::int64_t> logprobs_;
  std::vector<Completion> completions_;
  std::size_t current_ = 0;  ///< the first that has not ended
  TextOutput output_;
  bool begun_ = false;  ///< the current one's prompt is printed
};

}  // namespace hyperslab::cli
