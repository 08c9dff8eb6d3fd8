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
  decay_ = optimizer.take(DType::f32, {params.flat_size() / ops::kDecayGranule}, "weight decay");
}

void AdamW::initialize(Context& ctx) const {
  ops::fill(ctx, 0, exp_avg_);
  ops::fill(ctx, 0, exp_avg_sq_);
  ops::fill(ctx, 0, decay_);
  for (const nn::Param& param : params_.params()) {
    if (!decays(config_, param.kind)) continue;
    // A pack's members are of one kind, so no granule is shared by different decays.
    const Dim first = param.flat_begin / ops::kDecayGranule;
    const Dim last = (param.flat_begin + param.numel() - 1) / ops::kDecayGranule;
    ops::fill(ctx, static_cast<float>(config_.weight_decay), decay_.slice(first, last - first + 1));
  }
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
  ops::adamw(ctx, constants, decay_, state, params_.master(), params_.gradient(), exp_avg_,
             exp_avg_sq_, own_value ? params_.value() : View());
}

}  // namespace hyperslab::optim
