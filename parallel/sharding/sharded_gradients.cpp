// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "hyperslab/ops/elementwise.hpp"
#include "strategies.hpp"

namespace hyperslab::sharding {

ShardStrategy::GradientMemory ShardedGradients::take_gradients(Arena& arena, DType dtype) {
  const View shards = arena.take(dtype, {group().shard_size()}, "gradient shards");
  Dim largest = 0;
  for (const Bucket& bucket : group().buckets()) {
    if (bucket.is_sharded()) largest = std::max(largest, bucket.size());
  }
  const std::array<View, 2> buffers = {arena.take(dtype, {largest}, "gradient bucket 0"),
                                       arena.take(dtype, {largest}, "gradient bucket 1")};
  std::vector<View> by_bucket;
  std::size_t turn = 0;
  for (const Bucket& bucket : group().buckets()) {
    by_bucket.push_back(bucket.is_sharded()
                            ? buffers[turn++ % 2].slice(0, bucket.size())
                            : arena.take(dtype, {bucket.size()}, "gradient bucket"));
  }
  return {{shards, true}, std::move(by_bucket)};
}

void ShardedGradients::begin_step() {
  ShardedState::begin_step();
  microbatch_ = -1;
}

bool ShardedGradients::share_memory(const Bucket& a, const Bucket& b) const {
  return group().gradient(a).raw() == group().gradient(b).raw();
}

/// Empties and clears the buffer that the gradients of the unit's buckets go to.
void ShardedGradients::before_backward(Context& ctx, int unit, int microbatch) {
  if (microbatch != microbatch_) {
    microbatch_ = microbatch;
    reopen_buckets();
  }
  for (std::size_t i = 0; i < buckets(); ++i) {
    const Bucket& mine = bucket(i);
    if (unit < mine.first_unit || unit > mine.last_unit) continue;
    if (state(i).microbatch == microbatch) continue;
    for (std::size_t other = 0; other < buckets(); ++other) {
      if (!share_memory(bucket(other), mine)) continue;
      if (state(other).ticket != 0) note_arrival(ctx);
      keep(ctx, other);
    }
    state(i).microbatch = microbatch;
    ops::fill(ctx, 0, group().gradient(mine));  // gaps between tensors hold another bucket's
  }
}

void ShardedGradients::keep(Context& ctx, std::size_t index) {
  if (!state(index).pending) return;
  {
    const auto exposed = enter_exposed(ctx);
    wait_for_bucket(ctx, index);
  }
  const View written = written_shard(bucket(index));
  const View kept = gradients().at(group().shard(bucket(index)));
  if (state(index).microbatch == 0) {
    ops::cast(ctx, written, kept);
  } else {
    ops::add(ctx, written, kept, kept);
  }
}

void ShardedGradients::finish(Context& ctx) {
  note_arrival(ctx);
  const Scope adds(ctx.recorder(), Phase::backward);  // to the kept shards, as within backward
  for (std::size_t i = buckets(); i-- > 0;) keep(ctx, i);
}

}  // namespace hyperslab::sharding
