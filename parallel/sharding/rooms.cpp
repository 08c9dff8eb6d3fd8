// SPDX-License-Identifier: Apache-2.0
#include "rooms.hpp"

#include <algorithm>

namespace hyperslab::sharding {

std::vector<View> take_rooms(const param::ParamGroup& group, int count, Arena& arena, DType dtype,
                             const std::string& label) {
  std::vector<Dim> sizes(static_cast<std::size_t>(count), 0);
  std::size_t turn = 0;
  for (const param::Bucket& bucket : group.buckets()) {
    if (!bucket.is_sharded()) continue;
    Dim& size = sizes[turn++ % sizes.size()];
    size = std::max(size, bucket.size());
  }
  std::vector<View> rooms;
  for (const Dim size : sizes) {
    if (size == 0) continue;
    rooms.push_back(arena.take(dtype, {size}, label + " " + std::to_string(rooms.size())));
  }
  std::vector<View> by_bucket;
  turn = 0;
  for (const param::Bucket& bucket : group.buckets()) {
    by_bucket.push_back(bucket.is_sharded() ? rooms[turn++ % rooms.size()].slice(0, bucket.size())
                                            : arena.take(dtype, {bucket.size()}, label));
  }
  return by_bucket;
}

}  // namespace hyperslab::sharding
