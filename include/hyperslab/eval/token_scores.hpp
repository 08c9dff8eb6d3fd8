// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of the tokens of a file, for losses that compare with another model.
#pragma once

#include <string>
#include <vector>

#include "hyperslab/eval/evaluator.hpp"

namespace hyperslab::eval {

/// The log-probabilities of a file's tokens under a checkpoint.
struct TokenScores {
  std::int64_t step = 0;
  std::int64_t documents = 0;
  std::int64_t cut = 0;  ///< documents longer than the model's context
  /// (tokens) nats, each of a token after those before it in its document; 0 for first tokens. On
  /// rank 0.
  std::vector<float> values;
};

/// Reads every document of `file` alone, those longer than model.context in pieces of as many
/// tokens, as training with data.packing does. Collective over the world. Throws Error(data): the
/// file has no list of documents, and deck.config has no data.end_token; Error(checkpoint);
/// Error(numerics): a log-probability is no finite number.
[[nodiscard]] TokenScores token_scores(comm::World& world, const EvalDeck& deck,
                                       const std::string& file, const std::string& checkpoint);

}  // namespace hyperslab::eval
