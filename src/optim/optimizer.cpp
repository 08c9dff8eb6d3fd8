// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/optim/optimizer.hpp"

#include <algorithm>

#include "adamw.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/average.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/component.hpp"
#include "muon.hpp"
#include "sgd.hpp"

namespace hyperslab::optim {

ops::DecayRule decay_rule_of(const OptimizerConfig& config) {
  return config.cautious_decay ? ops::DecayRule::cautious : ops::DecayRule::all;
}

bool decays(const OptimizerConfig& config, param::Role role) {
  switch (role) {
    case param::Role::matrix:
    case param::Role::head:
    case param::Role::router:
    case param::Role::adapter: return true;
    case param::Role::embedding: return config.decay_embeddings;
    case param::Role::bias:
    case param::Role::norm: return config.decay_norms_and_biases;
  }
  return false;
}

namespace {

std::unique_ptr<Optimizer> optimizer_of(const OptimizerConfig& config,
                                        const param::ParamGroup& group, bool sharded, Arena& arena,
                                        const UpdateGroups& groups) {
  switch (config.name) {
    case OptimizerKind::adamw: return std::make_unique<AdamW>(config, group, sharded, arena);
    case OptimizerKind::muon: return std::make_unique<Muon>(config, group, sharded, arena, groups);
    case OptimizerKind::sgd: return std::make_unique<Sgd>(config, group, sharded, arena);
  }
  throw Error(ExitCode::internal, "an optimizer without a class");
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          const param::ParamGroup& group, bool sharded,
                                          Arena& arena, const UpdateGroups& groups) {
  std::unique_ptr<Optimizer> made = optimizer_of(config, group, sharded, arena, groups);
  if (config.averages()) {
    made->average_ = made->take_state(arena, Optimizer::kAverage, made->master_dtype());
  }
  return made;
}

std::vector<Optimizer::State> Optimizer::state() const {
  std::vector<State> all = moments();
  if (average_) all.push_back({kAverage, average_});
  return all;
}

void Optimizer::restart_average(Context& ctx, const param::ElementRange& range) const {
  ops::cast(ctx, group_.master().at(range), average_.at(range));
}

void Optimizer::exchange_average(Context& ctx, const param::ElementRange& range) const {
  const View master = group_.master().at(range);
  ops::exchange(ctx, master, average_.at(range));
  if (group_.has_own_values()) ops::cast(ctx, master, group_.value().at(range));
}

void Optimizer::take_decay(Arena& arena) {
  const Dim size = sharded_ ? group_.shard_size() : group_.flat_size();
  decay_ = {arena.take(DType::f32, {size / ops::kDecayGranule}, "weight decay"), sharded_};
}

param::StateView Optimizer::take_state(Arena& arena, const std::string& name, DType dtype) const {
  const Dim size = sharded_ ? group_.shard_size() : group_.flat_size();
  return {arena.take(dtype, {size}, name), sharded_};
}

void Optimizer::initialize(Context& ctx) const {
  for (const State& buffer : state()) ops::fill(ctx, 0, buffer.values.data);
  ops::fill(ctx, 0, decay_.data);
  for (const param::Param* param : group_.params()) {
    if (decays(config_, param->role) && param->numel() > 0) fill_decay(ctx, *param);
  }
}

void Optimizer::fill_decay(Context& ctx, const param::Param& param) const {
  const Dim end = param.flat_begin + param.numel();
  if (!sharded_) return fill_decay(ctx, param.flat_begin, end);
  const param::ElementRange mine = group_.shard(group_.bucket_of(param));
  const Dim from = std::max(mine.in_flat, param.flat_begin) - mine.in_flat;
  const Dim to = std::min(mine.in_flat + mine.size, end) - mine.in_flat;
  if (from < to) fill_decay(ctx, mine.in_shards + from, mine.in_shards + to);
}

/// Fused parameters have one role, so no granule is shared by different decays.
void Optimizer::fill_decay(Context& ctx, Dim begin, Dim end) const {
  const Dim first = begin / ops::kDecayGranule;
  const Dim last = (end - 1) / ops::kDecayGranule;
  ops::fill(ctx, static_cast<float>(config_.weight_decay),
            decay_.data.slice(first, last - first + 1));
}

void Optimizer::update(Context& ctx, const ops::StepState* state, const param::StateView& gradients,
                       const param::ElementRange& range) const {
  const Scope scope(ctx.recorder(), kOptimizerComponent);
  ops::UpdateOperands operands = operands_of(gradients, range);
  operands.decay =
      decay_.data.slice(decay_.index(range) / ops::kDecayGranule, range.size / ops::kDecayGranule);
  update_range(ctx, state, operands, range);
  if (!average_) return;
  const ops::AverageConstants constants = {static_cast<float>(1 - config_.ema_decay),
                                           config_.ema_start_step};
  ops::average_weights(ctx, constants, state, operands.master, average_.at(range));
}

ops::UpdateOperands Optimizer::operands_of(const param::StateView& gradients,
                                           const param::ElementRange& range) const {
  ops::UpdateOperands operands;
  operands.master = group_.master().at(range);
  operands.gradient = gradients.at(range);
  if (group_.has_own_values()) operands.value = group_.value().at(range);
  return operands;
}

ops::FinalizeConstants Optimizer::finalize_constants() const {
  ops::FinalizeConstants constants;
  constants.clip_norm = static_cast<float>(config_.clip_norm);
  return constants;
}

}  // namespace hyperslab::optim
