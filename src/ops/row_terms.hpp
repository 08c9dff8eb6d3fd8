// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::ops {

/// The teacher's distribution over its tokens in one row.
template <class Real>
struct TeacherRow {
  Real largest = 0;       ///< largest log-probability
  Real exponentials = 0;  ///< sum of e^(log-probability - largest)
  Real entropy = 0;       ///< nats, of the normalized distribution

  /// values: the log-probabilities.
  HS_HOST_DEVICE TeacherRow(const float* values, int count) {
    if (count == 0) return;
    largest = Real(values[0]);
    for (int j = 1; j < count; ++j) largest = values[j] > largest ? Real(values[j]) : largest;
    Real weighted = 0;
    for (int j = 0; j < count; ++j) {
      const Real below = Real(values[j]) - largest;
      const Real term = std::exp(below);
      exponentials += term;
      weighted += term > 0 ? term * below : Real(0);
    }
    entropy = std::log(exponentials) - weighted / exponentials;
  }
  /// The probability of a token with this log-probability.
  [[nodiscard]] HS_HOST_DEVICE Real probability(float value) const {
    return std::exp(Real(value) - largest) / exponentials;
  }
};

/// The target's and the teacher's part in a row's log-probabilities.
template <class Real>
struct RowLogits {
  Real target;   ///< logit
  Real teacher;  ///< sum of probability times logit of the teacher's tokens
  Real log_z;    ///< log of the sum of e^logit
};

/// Loss of a counted row, and its derivatives: by logit i it is softmax * p_i, minus `target` at
/// the target, minus `teacher` q_i at the teacher's tokens.
template <class Real>
struct RowTerms {
  Real loss;
  Real weight;
  Real kl;
  bool clipped;
  Real softmax;
  Real target;
  Real teacher;

  /// values: the row of TokenTerms::values. entropy: of the teacher.
  HS_HOST_DEVICE RowTerms(const TokenLoss& loss_of, const float* values, const RowLogits<Real>& at,
                          Real entropy)
      : weight(loss_of.weight < 0 ? Real(1) : Real(values[loss_of.weight])), kl(0), clipped(false) {
    if (weight == 0) {  // whatever the other values are
      loss = softmax = target = teacher = 0;
      return;
    }
    const Real log_probability = at.target - at.log_z;
    Real objective = -log_probability;
    Real slope = 1;
    if (loss_of.objective == TokenObjective::clipped) {
      clip(loss_of, values, log_probability, objective, slope);
    }
    const Real share = loss_of.has_teacher() ? Real(loss_of.teacher_weight) : Real(0);
    if (share > 0) objective = (1 - share) * objective + share * (at.log_z - at.teacher - entropy);
    loss = weight * objective;
    target = weight * (1 - share) * slope;
    teacher = weight * share;
    softmax = target + teacher;
    kl *= weight;
  }

 private:
  HS_HOST_DEVICE void clip(const TokenLoss& loss_of, const float* values, Real log_probability,
                           Real& objective, Real& slope) {
    const auto advantage = Real(values[loss_of.advantage]);
    const Real ratio = std::exp(log_probability - Real(values[loss_of.old_log_probability]));
    const Real least = 1 - Real(loss_of.clip_low);
    const Real most = 1 + Real(loss_of.clip_high);
    const Real bounded = (ratio < least ? least : ratio > most ? most : ratio) * advantage;
    const Real gain = advantage == 0 ? Real(0) : ratio * advantage;  // a ratio may be infinite
    clipped = bounded < gain;
    objective = clipped ? -bounded : -gain;
    slope = clipped ? Real(0) : gain;
    if (loss_of.reference < 0) return;
    const Real d = Real(values[loss_of.reference]) - log_probability;
    kl = std::exp(d) - d - 1;
    objective += Real(loss_of.kl_weight) * kl;
    slope += Real(loss_of.kl_weight) * (std::exp(d) - 1);
  }
};

}  // namespace hyperslab::ops
