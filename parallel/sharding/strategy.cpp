// SPDX-License-Identifier: Apache-2.0
// Parts of all strategies: the walk over the buckets and the sums over axes besides data.
#include "hyperslab/sharding/strategy.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "strategies.hpp"

namespace hyperslab::sharding {

std::unique_ptr<ShardStrategy> make_replicated() { return std::make_unique<Replicated>(); }

std::unique_ptr<ShardStrategy> make_strategy(int zero) {
  switch (zero) {
    case 0: return make_replicated();
    case 1: return std::make_unique<ShardedState>();
    case 2: return std::make_unique<ShardedGradients>();
    default: break;
  }
  throw Error(ExitCode::internal, "no strategy for zero " + std::to_string(zero));
}

void ShardStrategy::allocate(param::ParamStore& store, Arena& parameters, Arena* gradients,
                             const DTypes& dtypes) {
  const auto& [master, compute, gradient] = dtypes;
  group_ = &store.trained();
  ranges_ = find_ranges();
  const bool own_values = compute != master;
  param::ParamGroup::Memory memory;
  const bool sharded = own_values && shards_state();
  const Dim masters = sharded ? group_->shard_size() : group_->flat_size();
  memory.master = {parameters.take(master, {masters}, "masters"), sharded};
  memory.value = memory.master;
  if (own_values) {
    memory.value = {parameters.take(compute, {group_->flat_size()}, "values"), false};
  }
  if (gradients != nullptr) {
    GradientMemory taken = take_gradients(*gradients, gradient);
    gradients_ = taken.reduced;
    memory.gradients = std::move(taken.by_bucket);
  }
  group_->bind(std::move(memory));
  store.take_quantized(parameters, compute, gradients != nullptr);
  if (gradients != nullptr) {
    store.take_reserved(parameters);
    allocate_fp8(store, parameters);
  }
  param::ParamGroup& frozen = store.frozen();
  if (frozen.params().empty()) return;
  const View values = parameters.take(compute, {frozen.flat_size()}, "frozen values");
  frozen.bind({.master = {}, .value = {values, false}, .gradients = {}});
}

void ShardStrategy::connect(const mesh::Mesh& mesh) {
  mesh_ = &mesh;
  data_ = &mesh.group(mesh::kGradients);
  states_.assign(group_->buckets().size(), {});
  if (mesh_->key_value_group() != nullptr) find_key_values();
  find_norm_views();
  begin_step();
}

void ShardStrategy::begin_step() {
  reopen_buckets();
  for (State& state : states_) state.microbatch = -1;
}

void ShardStrategy::before_forward(Context& ctx, int unit) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (unit < bucket(i).first_unit || unit > bucket(i).last_unit) continue;
    ctx.stream().wait(std::exchange(states_[i].update, {}));
    await_gather(ctx, i);
  }
}

void ShardStrategy::update_ends(std::size_t index, Event end) {
  states_[index].update = std::move(end);
}

void ShardStrategy::wait_for_updates(Context& ctx) {
  for (State& state : states_) ctx.stream().wait(std::exchange(state.update, {}));
}

void ShardStrategy::wait_all(Context& ctx) {
  wait_for_updates(ctx);
  for (std::size_t i = 0; i < states_.size(); ++i) await_gather(ctx, i);
}

void ShardStrategy::complete_values(Context& ctx) {
  wait_all(ctx);
  gather_values(ctx);
}

/// Key and value of a layer lie side by side and are summed by one call.
void ShardStrategy::find_key_values() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const View home = group_->gradient(bucket(i));
    Dim begin = -1;
    Dim end = -1;
    const auto add = [&] {
      if (begin < end) states_[i].key_values.push_back(home.slice(begin, end - begin));
    };
    for (const param::Param* param : group_->params()) {
      const Dim first = param->flat_begin - bucket(i).begin;
      if (param->replicas == 1 || first < 0 || first >= bucket(i).size()) continue;
      if (first != end) {
        add();
        begin = first;
      }
      end = first + param->numel();
    }
    add();
  }
}

/// The shards of this rank without the parameters that another rank owns. Padding is zero.
void ShardStrategy::find_norm_views() {
  for (const Bucket& bucket : group_->buckets()) {
    const bool owned = std::ranges::any_of(group_->params(), [&](const param::Param* param) {
      return param->owned && bucket.contains(*param);
    });
    if (!owned) continue;
    const param::ElementRange mine = group_->shard(bucket);
    const auto add = [&](Dim begin, Dim end) {
      const Dim skipped = begin - mine.in_flat;
      if (begin < end) add_norm_view({begin, mine.in_shards + skipped, end - begin});
    };
    Dim begin = mine.in_flat;
    const Dim end = begin + mine.size;
    for (const param::Param* param : group_->params()) {
      const Dim last = param->flat_begin + param->numel();
      if (param->owned || last <= begin || param->flat_begin >= end) continue;
      add(begin, param->flat_begin);
      begin = last;
    }
    add(begin, end);
  }
}

/// Joins ranges that lie one after the other.
void ShardStrategy::add_norm_view(const param::ElementRange& range) {
  const Dim index = gradients_.index(range);
  const bool joins = index == norm_end_;
  const Dim first = joins ? norm_end_ - norm_views_.back().numel() : index;
  if (joins) norm_views_.pop_back();
  norm_end_ = index + range.size;
  norm_views_.push_back(gradients_.data.slice(first, norm_end_ - first));
}

std::vector<View> ShardStrategy::by_bucket(const View& flat) const {
  std::vector<View> views;
  views.reserve(group_->buckets().size());
  for (const Bucket& bucket : group_->buckets()) {
    views.push_back(flat.slice(bucket.begin, bucket.size()));
  }
  return views;
}

View ShardStrategy::written_shard(const Bucket& bucket) const {
  const param::ElementRange mine = group_->shard(bucket);
  return group_->gradient(bucket).slice(mine.in_flat - bucket.begin, mine.size);
}

bool ShardStrategy::reduces() const {
  return data().size() > 1 || mesh_->size(mesh::Axis::tensor) > 1 || tied() != nullptr;
}

bool ShardStrategy::closes(int unit, bool last) const {
  if (!reduces() || (!last && !reduces_every_microbatch())) return false;
  return next_bucket_ >= 0 && bucket(static_cast<std::size_t>(next_bucket_)).first_unit >= unit;
}

void ShardStrategy::gradients_ready(Context& ctx, int unit, int microbatch, bool last) {
  while (closes(unit, last)) {
    const auto index = static_cast<std::size_t>(next_bucket_--);
    states_[index].microbatch = microbatch;
    close(ctx, index);
  }
}

/// Over tensor ranks, which come together in every layer.
void ShardStrategy::sum(Context& ctx, comm::Communicator& group, View gradients) {
  const Scope phase(ctx.recorder(), Phase::tensor_comm);
  group.wait(ctx, group.all_reduce(ctx, gradients, comm::ReduceOp::sum));
}

void ShardStrategy::close(Context& ctx, std::size_t index) {
  State& state = states_[index];
  for (const View& part : state.key_values) sum(ctx, *mesh_->key_value_group(), part);
  state.pending = true;
  if (data().size() > 1) state.ticket = start_sum(ctx, bucket(index));
}

std::optional<Scope<Phase>> ShardStrategy::enter_exposed(Context& ctx) const {
  if (data().size() == 1 && tied() == nullptr) return std::nullopt;
  return std::optional<Scope<Phase>>(std::in_place, ctx.recorder(), Phase::reduce_exposed);
}

void ShardStrategy::await(Context& ctx, comm::Communicator& group, comm::Ticket ticket,
                          Arrivals::Point point) {
  const double begin = now_seconds();
  group.wait(ctx, ticket);
  arrivals_.waited(point, begin, now_seconds());
}

/// The sum over data is complete after this call, then those over the other axes.
void ShardStrategy::wait_for_bucket(Context& ctx, std::size_t index) {
  State& state = states_[index];
  if (!state.pending) return;
  state.pending = false;
  const Bucket& mine = bucket(index);
  if (state.ticket != 0) await(ctx, data(), state.ticket, data_point_);
  state.ticket = 0;
  const View sums = reduced(mine);
  if (mine.placement.tensor.is_partial()) sum(ctx, mesh_->group(mesh::Axis::tensor), sums);
  if (mine.placement.pipeline.is_partial() && tied() != nullptr) {
    const Arrivals::Point point = arrivals_.arrive(ctx, *tied());
    await(ctx, *tied(), tied()->all_reduce(ctx, sums, comm::ReduceOp::sum), point);
  }
}

void ShardStrategy::progress() {
  const bool waits = std::ranges::any_of(states_, [](const State& s) { return s.ticket != 0; });
  if (waits) data().progress();
}

void ShardStrategy::finish(Context& ctx) {
  note_arrival(ctx);
  const auto exposed = enter_exposed(ctx);  // once for all buckets: a GPU is charged by launches
  for (std::size_t i = states_.size(); i-- > 0;) wait_for_bucket(ctx, i);
}

void ShardStrategy::report_waits(Context& ctx) {
  ctx.recorder().move(Phase::reduce_exposed, Phase::wait, arrivals_.take_late_seconds(ctx));
}

}  // namespace hyperslab::sharding
