// SPDX-License-Identifier: Apache-2.0
#include "rooms.hpp"

#include <algorithm>

namespace hyperslab::sharding {

std::vector<View> take_rooms(std::span<const Dim> items, int count, Arena& arena, DType dtype,
                             const std::string& label) {
  std::vector<Dim> sizes(static_cast<std::size_t>(count), 0);
  std::size_t turn = 0;
  for (const Dim item : items) {
    if (item == 0) continue;
    Dim& size = sizes[turn++ % sizes.size()];
    size = std::max(size, item);
  }
  std::vector<View> rooms;
  for (const Dim size : sizes) {
    if (size == 0) continue;
    rooms.push_back(arena.take(dtype, {size}, label + " " + std::to_string(rooms.size())));
  }
  std::vector<View> by_item;
  turn = 0;
  for (const Dim item : items) {
    by_item.push_back(item == 0 ? View() : rooms[turn++ % rooms.size()].slice(0, item));
  }
  return by_item;
}

std::vector<View> take_rooms(const param::ParamGroup& group, std::span<const Dim> sizes, int count,
                             Arena& arena, DType dtype, const std::string& label) {
  std::vector<Dim> others(sizes.begin(), sizes.end());
  std::vector<Dim> experts(sizes.begin(), sizes.end());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    (group.buckets()[i].is_of_experts() ? others : experts)[i] = 0;
  }
  std::vector<View> by_bucket = take_rooms(others, count, arena, dtype, label);
  const std::vector<View> of_experts = take_rooms(experts, count, arena, dtype, label);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (of_experts[i]) by_bucket[i] = of_experts[i];
  }
  return by_bucket;
}

std::vector<View> take_rooms(const param::ParamGroup& group, int count, Arena& arena, DType dtype,
                             const std::string& label,
                             const std::function<bool(const param::Bucket&)>& taken) {
  std::vector<Dim> sizes;
  for (const param::Bucket& bucket : group.buckets()) {
    sizes.push_back(bucket.is_sharded() && taken(bucket) ? bucket.size() : 0);
  }
  std::vector<View> by_bucket = take_rooms(group, sizes, count, arena, dtype, label);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const param::Bucket& bucket = group.buckets()[i];
    if (!bucket.is_sharded() && taken(bucket))
      by_bucket[i] = arena.take(dtype, {bucket.size()}, label);
  }
  return by_bucket;
}

void keep_own_experts(const param::ParamGroup& group, const param::StateView& values,
                      std::vector<View>& present) {
  for (std::size_t i = 0; i < present.size(); ++i) {
    const param::Bucket& bucket = group.buckets()[i];
    if (!group.is_of_own_experts(bucket) || bucket.gathers_fp8) continue;
    present[i] = values.at(group.shard(bucket));
  }
}

}  // namespace hyperslab::sharding
