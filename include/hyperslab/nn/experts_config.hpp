// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "hyperslab/core/view.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::nn {

/// The tokens over which a router's load is balanced: those of each sample, of a number of
/// neighbouring samples, or none.
enum class Balance : std::uint8_t { sequence, batch, none };

/// Deck section `experts`: layers whose feed-forward network is a mixture of experts.
struct ExpertsConfig {
  Dim count = 0;        ///< experts of a layer; 0: no layer has any
  Dim active = 2;       ///< experts that a token takes
  Dim width = 0;        ///< inner width of an expert; 0 in the deck: model.ffn_width
  Dim shared = 0;       ///< experts of that width that every token takes besides, as one network
  Dim every = 1;        ///< layers whose number, from 1 on, it divides have experts
  Dim first_dense = 0;  ///< layers before it, counted from 0, have none
  ops::RouterScore score = ops::RouterScore::softmax;
  bool normalize = true;  ///< a token's weights are divided by their sum
  double scale = 1;       ///< factor of a token's weights
  Dim groups = 1;         ///< ops::RouterRule::groups
  Dim active_groups = 1;
  Balance balance = Balance::sequence;
  Dim balance_samples = 1;  ///< samples that are balanced together, with Balance::batch
  double balance_weight = 0.01;
  double bias_rate = 0;  ///< step of the selection bias, ops::update_router_bias(); 0: no bias
  bool in_turn = false;  ///< ops::RouterRule::in_turn
  double z_weight = 0;   ///< weight of the mean of log(Z)^2, see ops::RouterLosses

  [[nodiscard]] explicit operator bool() const { return count > 0; }
  /// True if a bias, which no gradient changes, takes part in the choice of experts.
  [[nodiscard]] bool has_bias() const { return bias_rate > 0; }
  /// True if the layer, counted from 0, has experts.
  [[nodiscard]] bool at(Dim layer) const {
    return count > 0 && layer >= first_dense && (layer + 1) % every == 0;
  }
  /// Layers that have experts, of so many.
  [[nodiscard]] Dim layers_of(Dim layers) const {
    Dim found = 0;
    for (Dim layer = 0; layer < layers; ++layer) found += at(layer) ? 1 : 0;
    return found;
  }
  [[nodiscard]] ops::RouterRule rule() const {
    return {count,  active,        score,  normalize, static_cast<float>(scale),
            groups, active_groups, in_turn};
  }
  /// The terms that a router adds to the loss, of samples of so many tokens.
  [[nodiscard]] ops::RouterLosses losses(Dim sample_tokens) const {
    const double weight = balance == Balance::none ? 0 : balance_weight;
    return {static_cast<float>(weight), static_cast<float>(z_weight), balance_samples,
            balance_samples * sample_tokens};
  }
  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

}  // namespace hyperslab::nn
