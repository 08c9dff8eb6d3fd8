// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/sampling.hpp"

#include <algorithm>
#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::generate {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

/// Draw `number`, a function of the key.
std::uint64_t draw(std::uint64_t key, std::int64_t number) {
  const PhiloxCounter words =
      philox(philox_counter(static_cast<std::uint64_t>(number), name_hash("sampling")), key);
  return std::uint64_t{words.x[0]} << 32 | words.x[1];
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options, std::uint64_t stream, std::int64_t V)
    : options_(options), key_(options.seed + stream), V_(V) {
  if (options.has_penalty()) is_seen_.resize(static_cast<std::size_t>(V));
}

void Sampler::see(std::span<const std::int32_t> tokens) {
  if (!options_.has_penalty()) return;
  for (const std::int32_t token : tokens) {
    if (is_seen_[index(token)]) continue;
    is_seen_[index(token)] = true;
    seen_.push_back(token);
  }
}

std::span<const float> Sampler::penalized(std::span<const float> logits) {
  if (seen_.empty()) return logits;
  logits_.assign(logits.begin(), logits.end());
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const std::int32_t id : seen_) {
    float& logit = logits_[index(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return logits_;
}

ops::TokenChoice Sampler::choice() const {
  return {.draw = draw(key_, draws_),
          .temperature = options_.temperature,
          .top_p = options_.top_p,
          .min_p = options_.min_p,
          .top_k = options_.top_k};
}

std::int32_t Sampler::next(std::span<const float> logits) {
  require(std::ssize(logits) == V_, "sampling: logits of another vocabulary");
  const std::int32_t token = chooser_.choose(penalized(logits), choice());
  if (token < 0) {
    throw Error(ExitCode::numerics,
                "token " + std::to_string(draws_ + 1) +
                    " of the text: expected finite logits, found NaN or infinity; "
                    "the model has diverged: take an earlier checkpoint");
  }
  take();
  return token;
}

}  // namespace hyperslab::generate
