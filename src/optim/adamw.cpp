// SPDX-License-Identifier: Apache-2.0
#include "adamw.hpp"

namespace hyperslab::optim {

ops::AdamWConstants adamw_constants(const OptimizerConfig& config) {
  return {static_cast<float>(config.betas[0]), static_cast<float>(config.betas[1]),
          static_cast<float>(config.eps), decay_rule_of(config)};
}

ops::FinalizeConstants with_betas(ops::FinalizeConstants constants, const OptimizerConfig& config) {
  constants.beta1 = static_cast<float>(config.betas[0]);
  constants.beta2 = static_cast<float>(config.betas[1]);
  return constants;
}

AdamW::AdamW(const OptimizerConfig& config, const param::ParamGroup& group, const StatePlace& place)
    : Optimizer(config, group, place),
      exp_avg_(take_state("exp_avg", moment_dtype())),
      exp_avg_sq_(take_state("exp_avg_sq", moment_dtype())) {
  take_decay();
  take_rate();
}

DType AdamW::moment_dtype() const {
  const bool narrow = config().state == StateKind::bf16 && master_dtype() == DType::f32;
  return narrow ? DType::bf16 : master_dtype();
}

std::vector<Optimizer::State> AdamW::moments() const {
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

ops::FinalizeConstants AdamW::finalize_constants() const {
  return with_betas(Optimizer::finalize_constants(), config());
}

void AdamW::update_range(Context& ctx, const ops::StepState* state,
                         const ops::UpdateOperands& operands, std::span<const View> moments,
                         const param::ElementRange& /*range*/) const {
  ops::adamw(ctx, adamw_constants(config()), state, operands, moments[0], moments[1]);
}

}  // namespace hyperslab::optim
