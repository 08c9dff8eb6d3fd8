// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/optim/adamw.hpp"

#include <algorithm>

#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/component.hpp"

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
  const Dim size = is_sharded() ? params.shard_size() : params.flat_size();
  exp_avg_ = optimizer.take(dtype, {size}, "exp_avg");
  exp_avg_sq_ = optimizer.take(dtype, {size}, "exp_avg_sq");
  decay_ = optimizer.take(DType::f32, {size / ops::kDecayGranule}, "weight decay");
}

void AdamW::initialize(Context& ctx) const {
  ops::fill(ctx, 0, exp_avg_);
  ops::fill(ctx, 0, exp_avg_sq_);
  ops::fill(ctx, 0, decay_);
  for (const nn::Param& param : params_.params()) {
    if (!decays(config_, param.kind) || param.numel() == 0) continue;
    const Dim end = param.flat_begin + param.numel();
    if (!is_sharded()) {
      fill_decay(ctx, param.flat_begin, end, param.flat_begin);
      continue;
    }
    for (const nn::Bucket& bucket : params_.buckets()) {
      const Dim first = params_.shard_in_flat(bucket);
      const Dim from = std::max(first, param.flat_begin);
      const Dim to = std::min(first + params_.shard_size(bucket), end);
      if (from < to) fill_decay(ctx, from, to, params_.shard_in_space(bucket) + from - first);
    }
  }
}

/// Elements [begin, end) of a parameter, of which the first lies at `place`. A pack's members are
/// of one kind, so no granule is shared by different decays.
void AdamW::fill_decay(Context& ctx, Dim begin, Dim end, Dim place) const {
  const Dim first = place / ops::kDecayGranule;
  const Dim last = (place + end - begin - 1) / ops::kDecayGranule;
  ops::fill(ctx, static_cast<float>(config_.weight_decay), decay_.slice(first, last - first + 1));
}

ops::FinalizeConstants AdamW::finalize_constants() const {
  ops::FinalizeConstants constants;
  constants.clip_norm = static_cast<float>(config_.clip_norm);
  constants.beta1 = static_cast<float>(config_.betas[0]);
  constants.beta2 = static_cast<float>(config_.betas[1]);
  return constants;
}

ops::AdamWConstants AdamW::constants() const {
  return {static_cast<float>(config_.betas[0]), static_cast<float>(config_.betas[1]),
          static_cast<float>(config_.eps)};
}

void AdamW::update(Context& ctx, const ops::StepState* state) const {
  const Scope scope(ctx.recorder(), kOptimizerComponent);
  const bool own_value = params_.value().dtype() != params_.master().dtype();
  ops::adamw(ctx, constants(), decay_, state, params_.master(), params_.gradient(), exp_avg_,
             exp_avg_sq_, own_value ? params_.value() : View());
}

void AdamW::update(Context& ctx, const ops::StepState* state, const nn::Bucket& bucket) const {
  const Scope scope(ctx.recorder(), kOptimizerComponent);
  const Dim size = params_.shard_size(bucket);
  const Dim in_flat = params_.shard_in_flat(bucket);
  const Dim in_space = params_.shard_in_space(bucket);
  const View gradient = params_.gradient_shards() ? params_.gradient_shards().slice(in_space, size)
                                                  : params_.gradient().slice(in_flat, size);
  const bool own_value = params_.masters_are_sharded();
  const View master = params_.master().slice(own_value ? in_space : in_flat, size);
  ops::adamw(ctx, constants(),
             decay_.slice(in_space / ops::kDecayGranule, size / ops::kDecayGranule), state, master,
             gradient, exp_avg_.slice(in_space, size), exp_avg_sq_.slice(in_space, size),
             own_value ? params_.value().slice(in_flat, size) : View());
}

}  // namespace hyperslab::optim
