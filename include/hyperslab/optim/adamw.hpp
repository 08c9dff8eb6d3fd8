// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/param.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/config.hpp"

namespace hyperslab::optim {

/// AdamW on the flat space of a parameter table, with moments in an arena of its own.
class AdamW {
 public:
  AdamW(const OptimizerConfig& config, const nn::ParamTable& params, Arena& optimizer);

  /// Updates every parameter by the scalars in `state`. Enqueues on ctx.
  void update(Context& ctx, const ops::StepState* state) const;
  /// Clears the moments and fills the table of weight decays.
  void initialize(Context& ctx) const;

  [[nodiscard]] View exp_avg() const { return exp_avg_; }        ///< flat
  [[nodiscard]] View exp_avg_sq() const { return exp_avg_sq_; }  ///< flat
  [[nodiscard]] View decay() const { return decay_; }  ///< per ops::kDecayGranule elements
  [[nodiscard]] ops::JudgeConstants judge_constants() const;

 private:
  OptimizerConfig config_;
  const nn::ParamTable& params_;
  View exp_avg_;
  View exp_avg_sq_;
  View decay_;
};

/// Whether weight decay acts on a kind of parameter: matrices, and tables by choice; never norms
/// and biases.
[[nodiscard]] bool decays(const OptimizerConfig& config, nn::ParamKind kind);

}  // namespace hyperslab::optim
