// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace hyperslab::optim {

enum class OptimizerKind : std::uint8_t { adamw, sgd, muon };

/// The storage of the moments of AdamW: as the masters, or rounded stochastically.
enum class StateKind : std::uint8_t { fp32, bf16 };

/// The course of the learning rate after the warm-up; wsd: warm-up, stable, decay.
enum class ScheduleKind : std::uint8_t { constant, linear, cosine, wsd };

/// Deck section `optimizer`.
struct OptimizerConfig {
  OptimizerKind name = OptimizerKind::adamw;
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};  ///< adamw, muon
  double eps = 1e-8;                          ///< adamw, muon
  double momentum = 0.9;                      ///< sgd, muon
  double weight_decay = 0.1;                  ///< of matrices
  bool decay_embeddings = true;               ///< token and position tables, patch matrix
  bool decay_norms_and_biases = false;
  bool cautious_decay = false;        ///< adamw, muon: see ops::DecayRule
  StateKind state = StateKind::fp32;  ///< adamw
  double clip_norm = 1.0;             ///< 0: no clipping
  double ema_decay = 0;               ///< of the exponential moving average of the weights; 0: none
  std::int64_t ema_start_step = 0;    ///< updates before averaging begins
  bool evaluate_ema = false;          ///< validation, tasks and samples take the average
  /// True if an average of the weights is kept.
  [[nodiscard]] bool averages() const { return ema_decay > 0; }
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

/// Deck section `schedule`.
struct ScheduleConfig {
  ScheduleKind name = ScheduleKind::cosine;
  std::int64_t warmup_steps = 0;
  double final_fraction = 0.1;  ///< of lr, reached exactly at the last step
  double decay_fraction = 0.2;  ///< wsd: share of the steps that decay, at the end
  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

}  // namespace hyperslab::optim
