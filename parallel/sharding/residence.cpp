// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/residence.hpp"

#include <algorithm>
#include <string>

#include "hyperslab/core/error.hpp"

namespace hyperslab::sharding {

Residence zero(int level, Home state) {
  if (level < 0 || level > mesh::kMostZero) {
    throw Error(ExitCode::internal, "no residence for zero " + std::to_string(level));
  }
  const layout::Layout everywhere;
  const layout::Layout in_shards = everywhere.with(mesh::kShards, layout::flat());
  Residence residence;
  residence.written = everywhere.with(mesh::kGradients, layout::partial());
  if (level >= 1) residence.state = residence.gradient = in_shards;
  if (level >= 2) residence.written_rooms = 2;
  if (level >= 3) {
    residence.value = in_shards;
    residence.present_rooms = 2;
  }
  residence.state.home = state;
  return residence;
}

layout::Layout of_bucket(const param::Bucket& bucket, const layout::Layout& layout) {
  return bucket.is_of_experts() ? layout.with(mesh::Axis::expert, layout::replicate()) : layout;
}

Residence dequantized(bool training) {
  Residence residence;
  if (training) residence.present_rooms = 2;
  return residence;
}

Residence residence_of(const mesh::ParallelConfig& parallel, Home state) {
  const bool keeps_values = parallel.shards() == 1 || parallel.pipeline > 1;
  return zero(keeps_values ? std::min(parallel.zero, 2) : parallel.zero, state);
}

}  // namespace hyperslab::sharding
