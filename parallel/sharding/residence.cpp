// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/residence.hpp"

#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/mesh/parallel_config.hpp"

namespace hyperslab::sharding {

Residence zero(int level) {
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
  return residence;
}

}  // namespace hyperslab::sharding
