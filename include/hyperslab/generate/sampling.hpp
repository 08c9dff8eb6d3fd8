// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "hyperslab/ops/sample.hpp"

namespace hyperslab::generate {

struct SamplingOptions {
  std::int64_t max_tokens = 200;
  double temperature = 1.0;         ///< 0: the most likely token
  std::int64_t top_k = 0;           ///< 0: all
  double top_p = 1.0;               ///< nucleus (Holtzman et al. 2020); 1: all
  double min_p = 0;                 ///< share of the top probability (Nguyen et al. 2024); 0: all
  double repetition_penalty = 1.0;  ///< penalty of tokens of the text so far; 1: none
  std::uint64_t seed = 1;           ///< text i draws from the stream of seed + i
  std::vector<std::int32_t> stop_tokens = {};  ///< each ends a text, and is no part of it
  [[nodiscard]] bool stops_at(std::int32_t token) const {
    return std::ranges::find(stop_tokens, token) != stop_tokens.end();
  }
  /// True if the next token is the one with the largest logit.
  [[nodiscard]] bool is_greedy() const { return temperature == 0 && !has_penalty(); }
  /// True if it depends on the tokens of the text so far.
  [[nodiscard]] bool has_penalty() const { return repetition_penalty != 1; }
};

/// A guess of a text's next token.
struct DraftedToken {
  std::int32_t id = 0;
  /// (V), by which it was drawn, in any unit; empty: it was no draw, and has all the weight.
  std::span<const double> weights{};
};

/// Chooses the tokens of one text, a function of options, stream, logits and draws so far: after
/// the penalty as ops::TokenChooser does. Work per token is O(V).
class Sampler {
 public:
  /// `stream`: the text's number; V: ids of the model.
  Sampler(const SamplingOptions& options, std::uint64_t stream, std::int64_t V);

  /// These tokens are part of the text: the repetition penalty divides their logits, if they are
  /// above 0, else multiplies them (Keskar et al. 2019, section 4.1, which divides all of them, so
  /// that negative ones would rise).
  void see(std::span<const std::int32_t> tokens);

  /// The choice that next() would make after `ahead` further tokens, without the penalty.
  [[nodiscard]] ops::TokenChoice choice(std::int64_t ahead = 0) const;
  /// Another chose the next token.
  void take() { ++draws_; }
  /// The next token for logits (V). Throws Error(numerics) if they are not numbers.
  [[nodiscard]] std::int32_t next(std::span<const float> logits);
  /// next() where a draft is there: it is `draft.id` if that is accepted. Its distribution is
  /// next()'s: speculative sampling (Leviathan et al. 2023, algorithm 1), with draws of its own. A
  /// draft that was no draw is accepted if next() gives it, which is the algorithm with such a
  /// distribution of drafts, so that the token is next()'s.
  [[nodiscard]] std::int32_t next(std::span<const float> logits, const DraftedToken& draft);
  /// A draft by the logits (V) of another model, after the penalty and all cuts, with draws of its
  /// own: of the token that follows `drafted`, which follow the text. Fills `weights` for
  /// DraftedToken. -1: these logits are not finite.
  [[nodiscard]] std::int32_t draft(std::span<const float> logits,
                                   std::span<const std::int32_t> drafted,
                                   std::vector<double>& weights);

 private:
  [[nodiscard]] std::span<const float> penalized(std::span<const float> logits,
                                                 std::span<const std::int32_t> drafted = {});
  void penalize(std::int32_t token);
  [[noreturn]] void refuse_logits() const;

  SamplingOptions options_;
  std::uint64_t key_;
  std::int64_t draws_ = 0;
  std::int64_t V_;
  std::vector<bool> is_seen_;  ///< by token: the text has it, and the penalty applies
  std::vector<std::int32_t> seen_;
  std::vector<float> logits_;  ///< after the penalty
  ops::TokenChooser chooser_;
  std::vector<double> rest_;  ///< weights of a token in place of a draft
};

}  // namespace hyperslab::generate
