// SPDX-License-Identifier: Apache-2.0
// A model's answer to a request, in pieces.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/generate/log_probabilities.hpp"
#include "hyperslab/serve/completion_request.hpp"

namespace hyperslab::serve {

/// A token of an answer.
struct AnswerToken {
  std::int32_t id = 0;
  std::int64_t text_offset = 0;  ///< characters of the answer before it
  /// Absent for a text's first token, which nothing comes before.
  std::optional<generate::TokenLogProbabilities> log_probabilities;
};

enum class Finish : std::uint8_t {
  none,    ///< more comes
  stop,    ///< the end-of-text token, or a stop text
  length,  ///< max_tokens
};

/// Next piece of an answer, from one of its choices.
struct AnswerPiece {
  std::size_t choice = 0;           ///< prompt * n + which of its choices
  std::string text;                 ///< valid UTF-8
  std::vector<AnswerToken> tokens;  ///< if the request asks for log-probabilities
  Finish finish = Finish::none;     ///< anything else in a choice's last piece
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  generate::DraftCounts drafts{};
};

/// The receiver of an answer. Nothing throws.
struct AnswerListener {
  std::function<void(AnswerPiece piece)> take;
  std::function<bool()> is_there;  ///< false: the answer ends before the model's next pass
};
/// Receives the end of an answer, which `error`, if there is one, cut off: Error(numerics) for
/// logits that are no numbers, say.
using AnswerEnd = std::function<void(const Usage& usage, const std::exception_ptr& error)>;

/// Begins to answer a request on a model that it was read for; Generator::step goes on with it,
/// beside others. Every choice gets at least one piece, unless no one listens; `end` is called
/// once, now or in a step, and does not throw. The generator and the tokenizer
/// must outlive the answer.
void begin_completion(generate::Generator& generator, const io::Tokenizer& tokenizer,
                      std::shared_ptr<const CompletionRequest> request, AnswerListener listener,
                      AnswerEnd end);

/// True if the answer to a request takes the model alone, as it scores whole prompts.
[[nodiscard]] bool scores_prompts(const CompletionRequest& request);

}  // namespace hyperslab::serve
