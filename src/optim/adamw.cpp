// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/optim/adamw.hpp"

#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::optim {

bool decays(const OptimizerConfig& config, nn::ParamKind kind) {
  switch (kind) {
    case nn::ParamKind::matrix: return true;
    case nn::ParamKind::token_table:
    case nn::ParamKind::position_table: return config.decay_embeddings;
    case nn::ParamKind::bias:
    case nn::ParamKind::norm: return false;
  }
  return false;
}

AdamW::AdamW(const OptimizerConfig& config, const nn::ParamTable& params, Arena& optimizer)
    : config_(config), params_(params) {
  const DType dtype = params.master().dtype();
  exp_avg_ = optimizer.take(dtype, {params.flat_size()}, "exp_avg");
  exp_avg_sq_ = optimizer.take(dtype, {params.flat_size()}, "exp_avg_sq");
  for (const nn::Param& param : params.params()) {
    const float decay = decays(config, param.kind) ? static_cast<float>(config.weight_decay) : 0.0F;
    const Dim end = param.flat_begin + param.numel();
    const bool joins = !segments_.empty() && segments_.back().end == param.flat_begin &&
                       segments_.back().weight_decay == decay;
    if (joins) {
      segments_.back().end = end;
    } else {
      segments_.push_back({param.flat_begin, end, decay});
    }
  }
}

void AdamW::initialize(Context& ctx) const {
  ops::fill(ctx, 0, exp_avg_);
  ops::fill(ctx, 0, exp_avg_sq_);
}

ops::JudgeConstants AdamW::judge_constants() const {
  ops::JudgeConstants constants;
  constants.clip_norm = static_cast<float>(config_.clip_norm);
  constants.beta1 = static_cast<float>(config_.betas[0]);
  constants.beta2 = static_cast<float>(config_.betas[1]);
  return constants;
}

void AdamW::update(Context& ctx, const ops::StepState* state) const {
  const Scope scope(ctx.recorder(), Component::optimizer);
  const ops::AdamWConstants constants = {static_cast<float>(config_.betas[0]),
                                         static_cast<float>(config_.betas[1]),
                                         static_cast<float>(config_.eps)};
  const bool own_value = params_.value().dtype() != params_.master().dtype();
  ops::adamw(ctx, constants, segments_, state, params_.master(), params_.gradient(), exp_avg_,
             exp_avg_sq_, own_value ? params_.value() : View());
}

}  // namespace hyperslab::optim
