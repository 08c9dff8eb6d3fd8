// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/optim/optimizer.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "adamw.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/average.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/component.hpp"
#include "muon.hpp"
#include "sgd.hpp"
#include "state_transit.hpp"

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

float weight_decay_of(const OptimizerConfig& config, const param::Param& param) {
  if (!decays(config, param.role)) return 0;
  return static_cast<float>(config.weight_decay / param.rate);
}

namespace {

constexpr std::size_t kMostUpdated = 4;  // masters, two moments, average

std::unique_ptr<Optimizer> optimizer_of(const OptimizerConfig& config,
                                        const param::ParamGroup& group, const StatePlace& place,
                                        const UpdateGroups& groups) {
  switch (config.name) {
    case OptimizerKind::adamw: return std::make_unique<AdamW>(config, group, place);
    case OptimizerKind::muon: return std::make_unique<Muon>(config, group, place, groups);
    case OptimizerKind::sgd: return std::make_unique<Sgd>(config, group, place);
  }
  throw Error(ExitCode::internal, "an optimizer without a class");
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          const param::ParamGroup& group, const StatePlace& place,
                                          const UpdateGroups& groups) {
  std::unique_ptr<Optimizer> made = optimizer_of(config, group, place, groups);
  if (config.averages()) {
    made->average_ = made->take_state(Optimizer::kAverage, made->master_dtype());
  }
  made->updated_ = {group.master()};
  for (const Optimizer::State& buffer : made->state()) made->updated_.push_back(buffer.values);
  if (place.host) {
    made->transit_ = std::make_unique<StateTransit>(made->updated_, *place.host, place.device);
  }
  return made;
}

Optimizer::Optimizer(const OptimizerConfig& config, const param::ParamGroup& group,
                     StatePlace place)
    : config_(config), group_(group), place_(std::move(place)) {}
Optimizer::~Optimizer() = default;

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

param::StateView Optimizer::take_table(const std::string& name) const {
  const Dim size = place_.sharded ? group_.shard_size() : group_.flat_size();
  return {place_.device.take(DType::f32, {size / ops::kDecayGranule}, name), place_.sharded};
}

void Optimizer::take_decay() { decay_ = take_table("weight decay"); }

void Optimizer::take_rate() {
  const auto has_its_own = [](const param::Param* param) { return param->rate != 1; };
  if (std::ranges::none_of(group_.params(), has_its_own)) return;
  rate_ = take_table("learning rates");
}

param::StateView Optimizer::take_state(const std::string& name, DType dtype) const {
  const Dim size = place_.sharded ? group_.shard_size() : group_.flat_size();
  Arena& arena = place_.host ? place_.host->arena : place_.device;
  return {arena.take(dtype, {size}, name), place_.sharded};
}

void Optimizer::initialize(Context& ctx) const {
  for (const State& buffer : state()) ops::fill(ctx, 0, buffer.values.data);
  ops::fill(ctx, 0, decay_.data);
  if (rate_) ops::fill(ctx, 1, rate_.data);
  for (const param::Param* param : group_.params()) {
    if (param->numel() == 0) continue;
    const float decay = weight_decay_of(config_, *param);
    if (decay != 0) fill_granules(ctx, decay_, *param, decay);
    if (rate_ && param->rate != 1) fill_granules(ctx, rate_, *param, param->rate);
  }
}

/// Fused parameters have one role, so no granule is shared by different values.
void Optimizer::fill_granules(Context& ctx, const param::StateView& table,
                              const param::Param& param, float value) const {
  Dim begin = param.flat_begin;
  Dim end = begin + param.numel();
  if (place_.sharded) {
    const param::ElementRange mine = group_.shard(group_.bucket_of(param));
    const Dim from = std::max(mine.in_flat, begin) - mine.in_flat;
    const Dim to = std::min(mine.in_flat + mine.size, end) - mine.in_flat;
    if (from >= to) return;
    begin = mine.in_shards + from;
    end = mine.in_shards + to;
  }
  const Dim first = begin / ops::kDecayGranule;
  const Dim last = (end - 1) / ops::kDecayGranule;
  ops::fill(ctx, value, table.data.slice(first, last - first + 1));
}

View Optimizer::part_of(const param::StateView& table, const param::ElementRange& range) const {
  return table.data.slice(table.index(range) / ops::kDecayGranule, range.size / ops::kDecayGranule);
}

void Optimizer::update(Context& ctx, const ops::StepState* state, const param::StateView& gradients,
                       const param::ElementRange& range) const {
  const Scope scope(ctx.recorder(), kOptimizerComponent);
  std::array<View, kMostUpdated> parts;
  const std::span<View> here = std::span(parts).first(updated_.size());
  if (!transit_) {
    std::ranges::transform(updated_, here.begin(),
                           [&](const param::StateView& buffer) { return buffer.at(range); });
    return update_on_device(ctx, state, operands_of(gradients, range), here, range);
  }
  for (Dim begin = 0; begin < range.size; begin += transit_->chunk_elements()) {
    const param::ElementRange chunk = {range.in_flat + begin, range.in_shards + begin,
                                       std::min(transit_->chunk_elements(), range.size - begin)};
    const std::span<const View> brought = transit_->bring(ctx, chunk);
    update_on_device(ctx, state, operands_of(gradients, chunk), brought, chunk);
    transit_->take_back(ctx, chunk);
  }
}

void Optimizer::update_on_device(Context& ctx, const ops::StepState* scalars,
                                 ops::UpdateOperands operands, std::span<const View> updated,
                                 const param::ElementRange& range) const {
  operands.master = updated.front();
  operands.decay = part_of(decay_, range);
  if (rate_) operands.rate = part_of(rate_, range);
  const std::span<const View> moments = updated.subspan(1, updated.size() - (average_ ? 2 : 1));
  update_range(ctx, scalars, operands, moments, range);
  if (!average_) return;
  const ops::AverageConstants constants = {static_cast<float>(1 - config_.ema_decay),
                                           config_.ema_start_step};
  ops::average_weights(ctx, constants, scalars, operands.master, updated.back());
}

std::vector<std::size_t> Optimizer::moved_bytes() const {
  return transit_ ? transit_->moved_bytes() : std::vector<std::size_t>();
}

void Optimizer::begin_update(Context& ctx) const {
  if (transit_) transit_->begin(ctx);
}

void Optimizer::wait_for_state(Context& ctx) const {
  if (transit_) transit_->wait(ctx);
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
