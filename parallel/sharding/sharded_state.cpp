// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/elementwise.hpp"
#include "strategies.hpp"

namespace hyperslab::sharding {

ShardStrategy::GradientMemory ShardedState::take_gradients(Arena& arena, DType dtype) {
  const View flat = arena.take(dtype, {group().flat_size()}, "gradients");
  return {{flat, false}, by_bucket(flat)};
}

comm::Ticket ShardedState::start_sum(Context& ctx, const Bucket& bucket) {
  return data().reduce_scatter(ctx, group().gradient(bucket), written_shard(bucket));
}

std::vector<param::ElementRange> ShardedState::find_ranges() const {
  std::vector<param::ElementRange> ranges;
  ranges.reserve(group().buckets().size());
  for (const Bucket& bucket : group().buckets()) ranges.push_back(group().shard(bucket));
  return ranges;
}

void ShardedState::after_update(Context& ctx, std::size_t index) {
  if (fp8_ && fp8_->covers(index)) return fp8_->start(ctx, data(), index);
  if (data().size() == 1) return;
  const Bucket& mine = bucket(index);
  const View values = group().value().data.slice(mine.begin, mine.size());
  state(index).gather = data().all_gather(ctx, group().value().at(group().shard(mine)), values);
}

void ShardedState::allocate_fp8(param::ParamStore& store, Arena& parameters) {
  if (!store.gathered_fp8().empty()) fp8_.emplace(store, parameters);
}

void ShardedState::gather_values(Context& ctx) {
  if (fp8_) fp8_->gather_values(ctx, data());
}

void ShardedState::await_gather(Context& ctx, std::size_t index) {
  if (fp8_) fp8_->await(ctx, data(), index);
  if (state(index).gather == 0) return;
  data().wait(ctx, state(index).gather);
  state(index).gather = 0;
}

void ShardedState::masters_changed(Context& ctx) {
  if (!group().has_own_values()) {
    require(!fp8_, "FP8 values are gathered of values that are the masters");
    return;
  }
  const std::vector<param::ElementRange>& ranges = updated_ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    ops::cast(ctx, group().master().at(ranges[i]), group().value().at(ranges[i]));
    after_update(ctx, i);
  }
  wait_all(ctx);
}

}  // namespace hyperslab::sharding
