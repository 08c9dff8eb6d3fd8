// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/optim/optimizer.hpp"

namespace hyperslab::optim {

/// The constants that Adam takes from the deck.
[[nodiscard]] ops::AdamWConstants adamw_constants(const OptimizerConfig& config);
/// `constants` with the betas of which finalize_step derives Adam's bias corrections.
[[nodiscard]] ops::FinalizeConstants with_betas(ops::FinalizeConstants constants,
                                                const OptimizerConfig& config);

/// AdamW (Loshchilov & Hutter 2019), with moments in the masters' dtype or in bf16.
class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, const param::ParamGroup& group, const StatePlace& place);
  [[nodiscard]] ops::FinalizeConstants finalize_constants() const override;

 private:
  [[nodiscard]] DType moment_dtype() const;
  [[nodiscard]] std::vector<State> moments() const override;
  void update_range(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                    std::span<const View> moments, const param::ElementRange& range) const override;
  param::StateView exp_avg_;
  param::StateView exp_avg_sq_;
};

}  // namespace hyperslab::optim
