// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hyperslab::generate {

struct SamplingOptions {
  std::int64_t max_tokens = 200;
  double temperature = 1.0;         ///< 0: the most likely token
  std::int64_t top_k = 0;           ///< 0: all
  double top_p = 1.0;               ///< nucleus (Holtzman et al. 2020); 1: all
  double min_p = 0;                 ///< of the likeliest's probability (Nguyen et al. 2024); 0: all
  double repetition_penalty = 1.0;  ///< of tokens of the text so far; 1: none
  std::uint64_t seed = 1;           ///< text i draws from the stream of seed + i
  std::int32_t stop_token = -1;
  /// Whether the next token is the one with the largest logit.
  [[nodiscard]] bool is_greedy() const { return temperature == 0 && repetition_penalty == 1; }
};

/// Chooses the tokens of one text, a function of options, stream, logits and draws so far. The
/// steps, in this order: penalty, temperature, top k, top p, min p, a draw. Work per token is O(V).
class Sampler {
 public:
  /// `stream`: the text's number; V: ids of the model.
  Sampler(const SamplingOptions& options, std::uint64_t stream, std::int64_t V);

  /// These tokens are part of the text: the repetition penalty divides their logits, if they are
  /// above 0, else multiplies them (Keskar et al. 2019, section 4.1, which divides all of them, so
  /// that negative ones would rise).
  void see(std::span<const std::int32_t> tokens);

  /// Another chose the next token, the likeliest one.
  void take() { ++draws_; }
  /// The next token for logits (V). Throws Error(numerics) if they are not numbers.
  [[nodiscard]] std::int32_t next(std::span<const float> logits);

 private:
  [[nodiscard]] bool is_likelier(std::int32_t a, std::int32_t b) const;
  [[nodiscard]] std::size_t take_logits(std::span<const float> logits);
  void cut_to_top_k();
  void cut_to_top_p();
  void cut_to_min_p();
  [[nodiscard]] std::int32_t draw_token();

  SamplingOptions options_;
  std::uint64_t key_;
  std::int64_t draws_ = 0;
  std::vector<bool> is_seen_;
  std::vector<std::int32_t> seen_;
  std::vector<float> logits_;        ///< after the penalty
  std::vector<double> weights_;      ///< relative to the likeliest; 0: cut
  std::vector<std::int32_t> order_;  ///< ids; the first kept_ are the choice, in any order
  std::size_t kept_ = 0;
};

}  // namespace hyperslab::generate
