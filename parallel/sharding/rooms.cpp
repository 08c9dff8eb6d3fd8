// SPDX-License-Identifier: Apache-2.0
#include "rooms.hpp"

#include <algorithm>

namespace hyperslab::sharding {

std::vector<View> take_rooms(const param::ParamGroup& group, int count, Arena& arena, DType dtype,
                             const std::string& label) {
  Dim largest = 0;
  for (const param::Bucket& bucket : group.buckets()) {
    if (bucket.is_sharded()) largest = std::max(largest, bucket.size());
  }
  std::vector<View> rooms;
  for (int room = 0; room < count; ++room) {
    rooms.push_back(arena.take(dtype, {largest}, label + " " + std::to_string(room)));
  }
  std::vector<View> by_bucket;
  std::size_t turn = 0;
  for (const param::Bucket& bucket : group.buckets()) {
    by_bucket.push_back(bucket.is_sharded() ? rooms[turn++ % rooms.size()].slice(0, bucket.size())
                                            : arena.take(dtype, {bucket.size()}, label));
  }
  return by_bucket;
}

}  // namespace hyperslab::sharding
