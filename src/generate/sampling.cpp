// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/sampling.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::generate {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

/// The use of a draw: each has a stream of its own.
constexpr const char* kChoice = "sampling";
constexpr const char* kDraft = "draft";
constexpr const char* kAcceptance = "draft acceptance";

/// Draw `number`, a function of the key.
std::uint64_t draw(std::uint64_t key, std::int64_t number, const char* use) {
  const PhiloxCounter words =
      philox(philox_counter(static_cast<std::uint64_t>(number), name_hash(use)), key);
  return std::uint64_t{words.x[0]} << 32 | words.x[1];
}

double sum(std::span<const double> weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
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

void Sampler::penalize(std::int32_t token) {
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  float& logit = logits_[index(token)];
  logit = logit > 0 ? logit / penalty : logit * penalty;
}

std::span<const float> Sampler::penalized(std::span<const float> logits,
                                          std::span<const std::int32_t> drafted) {
  if (seen_.empty()) return logits;
  logits_.assign(logits.begin(), logits.end());
  for (const std::int32_t id : seen_) penalize(id);
  for (auto id = drafted.begin(); id != drafted.end(); ++id) {  // each new one once
    if (!is_seen_[index(*id)] && std::find(drafted.begin(), id, *id) == id) penalize(*id);
  }
  return logits_;
}

ops::TokenChoice Sampler::choice(std::int64_t ahead) const {
  return {.draw = draw(key_, draws_ + ahead, kChoice),
          .temperature = options_.temperature,
          .top_p = options_.top_p,
          .min_p = options_.min_p,
          .top_k = options_.top_k};
}

void Sampler::refuse_logits() const {
  throw Error(ExitCode::numerics,
              "token " + std::to_string(draws_ + 1) +
                  " of the text: expected finite logits, found NaN or infinity; "
                  "the model has diverged: take an earlier checkpoint");
}

std::int32_t Sampler::next(std::span<const float> logits) {
  require(std::ssize(logits) == V_, "sampling: logits of another vocabulary");
  const std::int32_t token = chooser_.choose(penalized(logits), choice());
  if (token < 0) refuse_logits();
  take();
  return token;
}

std::int32_t Sampler::next(std::span<const float> logits, const DraftedToken& draft) {
  if (draft.weights.empty()) return next(logits);
  require(std::ssize(logits) == V_ && std::ssize(draft.weights) == V_,
          "sampling: logits or drafts of another vocabulary");
  const ops::TokenChoice choice = this->choice();
  const std::span<const double> weights = chooser_.weigh(penalized(logits), choice);
  if (weights.empty()) refuse_logits();
  const double p = 1 / sum(weights);  // a unit of weight has this probability
  const double q = 1 / sum(draft.weights);
  const double uniform = static_cast<double>(draw(key_, draws_, kAcceptance)) * 0x1p-64;
  take();
  if (uniform * q * draft.weights[index(draft.id)] < p * weights[index(draft.id)]) return draft.id;
  rest_.resize(weights.size());
  for (std::size_t id = 0; id < weights.size(); ++id) {
    rest_[id] = std::max(0.0, p * weights[id] - q * draft.weights[id]);
  }
  // The rounding of equal distributions may leave no rest.
  return ops::TokenChooser::draw_token(sum(rest_) > 0 ? std::span<const double>(rest_) : weights,
                                       choice.draw);
}

std::int32_t Sampler::draft(std::span<const float> logits, std::span<const std::int32_t> drafted,
                            std::vector<double>& weights) {
  const std::span<const double> found = chooser_.weigh(penalized(logits, drafted), choice());
  weights.assign(found.begin(), found.end());
  if (weights.empty()) return -1;
  return ops::TokenChooser::draw_token(weights, draw(key_, draws_ + std::ssize(drafted), kDraft));
}

}  // namespace hyperslab::generate
