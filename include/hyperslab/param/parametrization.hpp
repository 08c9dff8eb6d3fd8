// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "hyperslab/param/spec.hpp"

namespace hyperslab::param {

/// The factors by which initial values, learning rates, logits and attention's scores follow from
/// the width. With them a learning rate that was tuned on a narrow model serves a wide one: the
/// maximal update parametrization (Yang et al. 2022, "Tensor Programs V", table 8, for Adam). As
/// default constructed, the standard one, in which every factor is 1.
struct Parametrization {
  double width_ratio = 1;   ///< width over the width at which rates are tuned, m
  Dim base_head_width = 0;  ///< head width of that model; 0: the same as here

  /// True of weights whose inputs grow with the width: the blocks' matrices and routers. The head's
  /// do, too, and have logit_factor() instead.
  [[nodiscard]] static bool grows(Role role) {
    return role == Role::matrix || role == Role::router;
  }
  /// The factor of the standard deviation of initial values.
  [[nodiscard]] double init_factor(Role role) const {
    return grows(role) ? 1 / std::sqrt(width_ratio) : 1;
  }
  /// The factor of the learning rate of Adam, whose update has elements of one size in every model.
  [[nodiscard]] double rate_factor(Role role) const { return grows(role) ? 1 / width_ratio : 1; }
  /// The factor of the learning rate of Muon. Its update has elements of one size too, but equal
  /// singular values: its spectral norm, which may not grow (Yang et al. 2023, "A spectral
  /// condition for feature learning", condition 1), grows with the root of the width.
  [[nodiscard]] double muon_rate_factor(Role role) const {
    return role == Role::matrix ? 1 / std::sqrt(width_ratio) : 1;
  }
  /// The factor of the head's products, with a tied table as with a matrix of its own.
  [[nodiscard]] double logit_factor() const { return 1 / width_ratio; }
  /// The factor of the products of queries and keys: 1 / head width, scaled so that it equals 1 /
  /// sqrt(head width) at the base's head width; 0: that usual factor.
  [[nodiscard]] double attention_scale(Dim head_width) const {
    if (base_head_width == 0 || base_head_width == head_width) return 0;
    return std::sqrt(static_cast<double>(base_head_width)) / static_cast<double>(head_width);
  }
};

}  // namespace hyperslab::param
