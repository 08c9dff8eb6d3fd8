// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hyperslab::generate {

struct TokenLogProbability {
  std::int32_t id = 0;
  double log_probability = 0;  ///< nats
};

/// The log-probabilities of one token of a text and of its alternatives.
struct TokenLogProbabilities {
  double log_probability = 0;            ///< nats, of the token itself
  std::vector<TokenLogProbability> top;  ///< the likeliest tokens, the likeliest first
};

/// The log-probability of token `id` under the softmax of `logits` (V), at temperature 1 and before
/// all cuts, summed in double; `top`: likeliest tokens to name, at most V; of equal ones the lower
/// id comes first.
[[nodiscard]] TokenLogProbabilities log_probabilities(std::span<const float> logits,
                                                      std::int32_t id, std::int64_t top);

}  // namespace hyperslab::generate
