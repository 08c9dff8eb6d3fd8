// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save.hpp"

namespace hyperslab::io {

void save_checkpoint(comm::World& world, const std::string& directory, const CheckpointMeta& meta,
                     std::span<const Slab> slabs) {
  SaveOptions options;
  options.activity = &world.activity();
  save_checkpoint(world, directory, meta, slabs, options);
}

}  // namespace hyperslab::io
