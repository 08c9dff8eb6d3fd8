// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/elementwise.hpp"
#include "strategies.hpp"

namespace hyperslab::sharding {

std::vector<param::ElementRange> Replicated::find_ranges() const {
  if (group().flat_size() == 0) return {};  // everything here is frozen
  if (!overlaps_updates()) return {group().all()};
  std::vector<param::ElementRange> ranges;
  ranges.reserve(group().buckets().size());
  for (const Bucket& bucket : group().buckets()) ranges.push_back({bucket.begin, 0, bucket.size()});
  return ranges;
}

ShardStrategy::GradientMemory Replicated::take_gradients(Arena& arena, DType dtype) {
  const View flat = arena.take(dtype, {group().flat_size()}, "gradients");
  return {{flat, false}, by_bucket(flat)};
}

comm::Ticket Replicated::start_sum(Context& ctx, const Bucket& bucket) {
  return data().all_reduce(ctx, group().gradient(bucket), comm::ReduceOp::sum);
}

View Replicated::reduced(const Bucket& bucket) const { return group().gradient(bucket); }

void Replicated::masters_changed(Context& ctx) {
  if (group().has_own_values()) ops::cast(ctx, group().master().data, group().value().data);
}

}  // namespace hyperslab::sharding
