// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/param.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/config.hpp"

namespace hyperslab::optim {

/// AdamW on the flat space of a parameter table, or with zero 1 and 2 on this rank's shards of it,
/// with moments in an arena of its own.
class AdamW {
 public:
  AdamW(const OptimizerConfig& config, const nn::ParamTable& params, Arena& optimizer);

  /// Updates every parameter by the scalars in `state`; only without shards. Enqueues on ctx.
  void update(Context& ctx, const ops::StepState* state) const;
  /// Updates this rank's shard of a bucket.
  void update(Context& ctx, const ops::StepState* state, const nn::Bucket& bucket) const;
  /// Clears the moments and fills the table of weight decays.
  void initialize(Context& ctx) const;

  [[nodiscard]] View exp_avg() const { return exp_avg_; }  ///< flat, or the shard space
  [[nodiscard]] View exp_avg_sq() const { return exp_avg_sq_; }
  [[nodiscard]] View decay() const { return decay_; }  ///< per ops::kDecayGranule elements
  [[nodiscard]] bool is_sharded() const { return params_.sharding().zero > 0; }
  [[nodiscard]] ops::FinalizeConstants finalize_constants() const;

 private:
  [[nodiscard]] ops::AdamWConstants constants() const;
  void fill_decay(Context& ctx, Dim begin, Dim end, Dim place) const;
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
