// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/log_probabilities.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {

TokenLogProbabilities log_probabilities(std::span<const float> logits, std::int32_t id,
                                        std::int64_t top) {
  require(id >= 0 && id < std::ssize(logits), "log_probabilities: a token of another vocabulary");
  const double largest = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  const auto of = [&](std::int32_t token) {
    return logits[static_cast<std::size_t>(token)] - log_sum;
  };

  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::clamp<std::int64_t>(top, 0, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  TokenLogProbabilities found = {of(id), {}};
  std::for_each(order.begin(), end, [&](std::int32_t token) {
    found.top.push_back({token, of(token)});
  });
  return found;
}

}  // namespace hyperslab::generate
