// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/reducer.hpp"

#include <algorithm>
#include <optional>

#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::dp {

using nn::Bucket;
using nn::BucketKind;

GradientReducer::GradientReducer(const nn::ParamTable& params, const GradientGroups& groups)
    : params_(params),
      groups_(groups),
      zero_(params.sharding().zero),
      states_(params.buckets().size()) {
  if (groups_.key_value != nullptr) find_key_values();
  find_norm_views();
  begin_step();
}

void GradientReducer::begin_step() {
  next_bucket_ = static_cast<int>(states_.size()) - 1;
  microbatch_ = -1;
  for (State& state : states_) state.microbatch = -1;
}

/// Key and value of a layer lie side by side and are summed by one call.
void GradientReducer::find_key_values() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const View home = params_.gradient(bucket(i));
    Dim begin = -1;
    Dim end = -1;
    const auto add = [&] {
      if (begin < end) states_[i].key_values.push_back(home.slice(begin, end - begin));
    };
    for (const nn::Param& param : params_.params()) {
      const Dim first = param.flat_begin - bucket(i).begin;
      if (param.replicas == 1 || first < 0 || first >= bucket(i).size()) continue;
      if (first != end) {
        add();
        begin = first;
      }
      end = first + param.numel();
    }
    add();
  }
}

bool GradientReducer::counts(const Bucket& bucket) const {
  switch (bucket.kind) {
    case BucketKind::tied: return groups_.counts_tied;
    case BucketKind::summed:
    case BucketKind::equal: return groups_.tensor->rank() == 0;
    case BucketKind::parts: break;
  }
  return true;
}

void GradientReducer::find_norm_views() {
  for (const Bucket& bucket : params_.buckets()) {
    if (!counts(bucket)) continue;
    Dim begin = params_.shard_in_flat(bucket);
    const Dim end = begin + params_.shard_size(bucket);
    for (const nn::Param& param : params_.params()) {
      const Dim last = param.flat_begin + param.numel();
      if (param.replica == 0 || last <= begin || param.flat_begin >= end) continue;
      add_norm_view(begin, param.flat_begin);  // another replica counts it
      begin = last;
    }
    add_norm_view(begin, end);
  }
}

/// Elements [begin, end) of the flat space, within one shard.
void GradientReducer::add_norm_view(Dim begin, Dim end) {
  if (begin >= end) return;
  if (zero_ < 2) {
    const bool joins = begin == norm_end_;
    const Dim first = joins ? norm_end_ - norm_views_.back().numel() : begin;
    if (joins) norm_views_.pop_back();
    norm_views_.push_back(params_.gradient().slice(first, end - first));
    norm_end_ = end;
    return;
  }
  const auto home = std::ranges::find_if(
      params_.buckets(), [&](const Bucket& b) { return begin >= b.begin && begin < b.end; });
  const Dim place = params_.shard_in_space(*home) + begin - params_.shard_in_flat(*home);
  norm_views_.push_back(params_.gradient_shards().slice(place, end - begin));
}

View GradientReducer::shard(const Bucket& bucket) const {
  const Dim size = params_.shard_size(bucket);
  return params_.gradient(bucket).slice(params_.sharding().rank * size, size);
}

bool GradientReducer::share_memory(const Bucket& a, const Bucket& b) const {
  return params_.gradient(a).raw() == params_.gradient(b).raw();
}

void GradientReducer::before_unit(Context& ctx, int unit, int microbatch) {
  if (zero_ < 2) return;
  if (microbatch != microbatch_) {
    microbatch_ = microbatch;
    next_bucket_ = static_cast<int>(states_.size()) - 1;
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Bucket& mine = bucket(i);
    State& state = states_[i];
    if (unit < mine.first_unit || unit > mine.last_unit || state.microbatch == microbatch) continue;
    for (std::size_t other = 0; other < states_.size(); ++other) {
      if (!share_memory(bucket(other), mine)) continue;
      if (states_[other].ticket != 0) data_point_ = arrivals_.come(ctx, *groups_.data);
      wait_for_bucket(ctx, other);
    }
    state.microbatch = microbatch;
    ops::fill(ctx, 0, params_.gradient(mine));  // gaps between tensors hold another bucket's
  }
}

bool GradientReducer::is_needed() const {
  return zero_ == 2 || groups_.data->size() > 1 || groups_.tensor->size() > 1 ||
         groups_.tied != nullptr;
}

bool GradientReducer::closes(int unit, bool last) const {
  if (!is_needed() || (!last && zero_ < 2)) return false;
  return next_bucket_ >= 0 && bucket(static_cast<std::size_t>(next_bucket_)).first_unit >= unit;
}

void GradientReducer::unit_done(Context& ctx, int unit, int microbatch, bool last) {
  while (closes(unit, last)) {
    const auto index = static_cast<std::size_t>(next_bucket_--);
    states_[index].microbatch = microbatch;
    close(ctx, index);
  }
}

/// Over tensor ranks, which come together in every layer.
void GradientReducer::sum(Context& ctx, comm::Communicator& group, View gradients) {
  const Scope phase(ctx.recorder(), Phase::tensor_comm);
  group.wait(ctx, group.all_reduce(ctx, gradients, comm::ReduceOp::sum));
}

void GradientReducer::close(Context& ctx, std::size_t index) {
  State& state = states_[index];
  const Bucket& mine = bucket(index);
  const View gradients = params_.gradient(mine);
  for (const View& part : state.key_values) sum(ctx, *groups_.key_value, part);
  state.pending = true;
  if (groups_.data->size() == 1) return;
  state.ticket = zero_ == 0 ? groups_.data->all_reduce(ctx, gradients, comm::ReduceOp::sum)
                            : groups_.data->reduce_scatter(ctx, gradients, shard(mine));
}

void GradientReducer::await(Context& ctx, comm::Communicator& group, comm::Ticket ticket,
                            Arrivals::Point point) {
  const Scope exposed(ctx.recorder(), Phase::reduce_exposed);
  const double begin = now_seconds();
  group.wait(ctx, ticket);
  arrivals_.waited(point, begin, now_seconds());
}

/// Waits for a bucket's sums and, with zero 2, adds them to what the rank keeps.
void GradientReducer::wait_for_bucket(Context& ctx, std::size_t index) {
  State& state = states_[index];
  if (!state.pending) return;
  state.pending = false;
  const Bucket& mine = bucket(index);
  if (state.ticket != 0) await(ctx, *groups_.data, state.ticket, data_point_);
  state.ticket = 0;
  const View reduced = zero_ == 0 ? params_.gradient(mine) : shard(mine);
  if (mine.kind == BucketKind::summed) sum(ctx, *groups_.tensor, reduced);
  if (mine.kind == BucketKind::tied && groups_.tied != nullptr) {
    const Arrivals::Point point = arrivals_.come(ctx, *groups_.tied);
    await(ctx, *groups_.tied, groups_.tied->all_reduce(ctx, reduced, comm::ReduceOp::sum), point);
  }
  if (zero_ < 2) return;
  const View kept =
      params_.gradient_shards().slice(params_.shard_in_space(mine), params_.shard_size(mine));
  if (state.microbatch == 0) {
    ops::cast(ctx, reduced, kept);
  } else {
    ops::add(ctx, reduced, kept, kept);
  }
}

void GradientReducer::progress() {
  const bool waits = std::ranges::any_of(states_, [](const State& s) { return s.ticket != 0; });
  if (waits) groups_.data->progress();
}

void GradientReducer::finish(Context& ctx) {
  std::optional<Scope<Phase>> adds;  // with zero 2, which does the same within backward
  if (zero_ == 2) adds.emplace(ctx.recorder(), Phase::backward);
  data_point_ = arrivals_.come(ctx, *groups_.data);
  for (std::size_t i = states_.size(); i-- > 0;) wait_for_bucket(ctx, i);
}

void GradientReducer::tell_waits(Context& ctx) {
  ctx.recorder().move(Phase::reduce_exposed, Phase::wait, arrivals_.take_late_seconds(ctx));
}

ParameterGather::ParameterGather(const nn::ParamTable& params, comm::Communicator& data)
    : params_(params), data_(data), tickets_(params.buckets().size(), 0) {}

void ParameterGather::start(Context& ctx, std::size_t bucket) {
  if (data_.size() == 1) return;
  const Bucket& mine = params_.buckets()[bucket];
  const View values = params_.value().slice(mine.begin, mine.size());
  const Dim size = params_.shard_size(mine);
  tickets_[bucket] = data_.all_gather(ctx, values.slice(data_.rank() * size, size), values);
  ++under_way_;
}

void ParameterGather::wait(Context& ctx, std::size_t bucket) {
  if (tickets_[bucket] == 0) return;
  data_.wait(ctx, tickets_[bucket]);
  tickets_[bucket] = 0;
  --under_way_;
}

void ParameterGather::wait_for(Context& ctx, int unit) {
  if (under_way_ == 0) return;
  for (std::size_t i = 0; i < tickets_.size(); ++i) {
    const Bucket& bucket = params_.buckets()[i];
    if (unit >= bucket.first_unit && unit <= bucket.last_unit) wait(ctx, i);
  }
}

void ParameterGather::finish(Context& ctx) {
  for (std::size_t i = 0; i < tickets_.size(); ++i) wait(ctx, i);
}

}  // namespace hyperslab::dp
