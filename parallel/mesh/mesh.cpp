// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/mesh/mesh.hpp"

namespace hyperslab::mesh {

Coordinates coordinates_of(const ParallelConfig& config, int world_rank) {
  const int stages = world_rank / config.tensor;
  return {stages / config.pipeline, stages % config.pipeline, 0, world_rank % config.tensor};
}

int world_rank_of(const ParallelConfig& config, const Coordinates& at) {
  return (at.data * config.pipeline + at.pipeline) * config.tensor + at.tensor;
}

std::string describe(const Coordinates& at) {
  return "data " + std::to_string(at.data) + ", pipeline " + std::to_string(at.pipeline) +
         ", tensor " + std::to_string(at.tensor);
}

std::string describe(const ParallelConfig& config) {
  return "data " + std::to_string(config.data) + " x tensor " + std::to_string(config.tensor) +
         " x pipeline " + std::to_string(config.pipeline);
}

Mesh::Mesh(const ParallelConfig& config, int world_rank)
    : config_(config), at_(coordinates_of(config, world_rank)) {}

Mesh::Mesh(comm::World& world, Device device, const ParallelConfig& config)
    : Mesh(config, world.rank()) {
  world_ = world.communicator(device, "world");
  world_->report_reductions(false);  // the step's sums, not gradients
  const int color = world_rank_of(config, {0, at_.pipeline, at_.context, at_.tensor});
  data_ = world_->split(color, at_.data, "data");
}

Mesh Mesh::plan(const ParallelConfig& config, int world_rank) {
  Mesh mesh(config, world_rank);
  mesh.world_ = comm::make_meta_communicator("world", world_rank, config.ranks());
  mesh.data_ = comm::make_meta_communicator("data", mesh.at_.data, config.data);
  return mesh;
}

}  // namespace hyperslab::mesh
