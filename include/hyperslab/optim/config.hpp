// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace hyperslab::optim {

enum class OptimizerKind : std::uint8_t { adamw, sgd, muon };

/// The traits of an optimizer that the rest of the program reads. Rules, advice and tests ask here.
struct OptimizerTraits {
  OptimizerKind kind;
  std::string_view name;
  bool has_bf16_state;   ///< StateKind::bf16
  bool decouples_decay;  ///< from the gradients, so that it can be cautious
  bool takes_rates;      ///< a learning rate of its own for each parameter of a range
  bool has_mup;          ///< param::Parametrization knows its law
  bool updates_ranges;   ///< any elements alone, so that state can come and go in chunks
};
inline constexpr std::array<OptimizerTraits, 3> kOptimizerTraits = {{
    {OptimizerKind::adamw, "adamw", true, true, true, true, true},
    {OptimizerKind::sgd, "sgd", false, false, false, false, true},
    {OptimizerKind::muon, "muon", false, true, false, true, false},
}};
[[nodiscard]] constexpr const OptimizerTraits& traits_of(OptimizerKind kind) {
  return *std::ranges::find(kOptimizerTraits, kind, &OptimizerTraits::kind);
}

/// The storage of the moments of AdamW: as the masters, or rounded stochastically.
enum class StateKind : std::uint8_t { fp32, bf16 };
inline constexpr std::array kStateKinds = {StateKind::fp32, StateKind::bf16};
[[nodiscard]] constexpr std::string_view name_of(StateKind kind) {
  return kind == StateKind::bf16 ? "bf16" : "fp32";
}

/// The course of the learning rate after the warm-up; wsd: warm-up, stable, decay.
enum class ScheduleKind : std::uint8_t { constant, linear, cosine, wsd };
inline constexpr std::array kScheduleKinds = {ScheduleKind::constant, ScheduleKind::linear,
                                              ScheduleKind::cosine, ScheduleKind::wsd};
[[nodiscard]] constexpr std::string_view name_of(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::constant: return "constant";
    case ScheduleKind::linear: return "linear";
    case ScheduleKind::cosine: return "cosine";
    case ScheduleKind::wsd: return "wsd";
  }
  return "?";
}

/// Deck section `optimizer`.
struct OptimizerConfig {
  OptimizerKind name = OptimizerKind::adamw;
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};  ///< two moments'
  double eps = 1e-8;                          ///< added to the second moment's root
  double momentum = 0.9;                      ///< decay of one moment
  double weight_decay = 0.1;                  ///< for matrices; the next two add other parameters
  bool decay_embeddings = true;               ///< token and position tables, patch matrix
  bool decay_norms_and_biases = false;
  bool cautious_decay = false;        ///< needs traits_of(name).decouples_decay: ops::DecayRule
  StateKind state = StateKind::fp32;  ///< bf16 where traits_of(name).has_bf16_state
  double clip_norm = 1.0;             ///< 0: no clipping
  double ema_decay = 0;               ///< decay of the moving average of the weights; 0: none
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
  double final_fraction = 0.1;  ///< share of lr, reached exactly at the last step
  double decay_fraction = 0.2;  ///< wsd: share of the steps that decay, at the end
  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

}  // namespace hyperslab::optim
