// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// The choice of the next token of one text. The steps, in this order: temperature, top k, top p,
/// min p, a draw. The fields of 8 bytes come first, so that a device reads it as it is.
struct TokenChoice {
  std::uint64_t draw = 0;    ///< uniform; of all weights together it takes draw / 2^64
  double temperature = 1.0;  ///< 0: the likeliest token
  double top_p = 1.0;        ///< nucleus (Holtzman et al. 2020); 1: all
  double min_p = 0;          ///< share of the largest probability (Nguyen et al. 2024); 0: all
  std::int64_t top_k = 0;    ///< 0: all
};
static_assert(std::is_trivially_copyable_v<TokenChoice> && sizeof(TokenChoice) == 40);

/// Chooses on the host, with memory that it keeps from call to call. Work is O(V).
class TokenChooser {
 public:
  /// The token, or -1 if a logit is NaN or infinite, or all are -infinity. Weights are kept in
  /// double and added in the order of tokens.
  [[nodiscard]] std::int32_t choose(std::span<const float> logits, const TokenChoice& choice);
  /// The weights (V) by which choose() draws: relative to the likeliest's, 0 for tokens that are
  /// cut, at temperature 0 for all but the likeliest. Empty: choose() would give -1. Valid until
  /// the next call.
  [[nodiscard]] std::span<const double> weigh(std::span<const float> logits,
                                              const TokenChoice& choice);
  /// The token that a draw takes of weights, as TokenChoice has it: goes by token, so that the
  /// order that selection leaves does not matter. Cut tokens weigh 0.
  [[nodiscard]] static std::int32_t draw_token(std::span<const double> weights, std::uint64_t draw);

 private:
  [[nodiscard]] bool is_likelier(std::int32_t a, std::int32_t b) const;
  void cut_to_top_k(std::int64_t k);
  void cut_to_top_p(double top_p);
  void cut_to_min_p(double min_p);
  /// The likeliest token, or -1.
  [[nodiscard]] std::int32_t look_at(std::span<const float> logits);
  void make_weights(std::int32_t likeliest, const TokenChoice& choice);

  std::span<const float> logits_;
  std::vector<double> weights_;      ///< relative to the likeliest; 0: cut
  std::vector<std::int32_t> order_;  ///< tokens; the first kept_ are the choice, in any order
  std::size_t kept_ = 0;
};

/// Draws for every row of logits a token, as TokenChooser chooses it from the first V. logits:
/// (rows, C), C at least V; choices: (rows, sizeof(TokenChoice)) u8, of TokenChoice; index: (rows)
/// i32. A GPU has weights in f32, so that a draw or a cut that falls next to a border may give a
/// neighbor, and never draws a token of less than 2^-41 of the likeliest's weight.
void sample(Context& ctx, CView logits, Dim V, CView choices, View index);

}  // namespace hyperslab::ops
