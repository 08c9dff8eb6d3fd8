// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/mesh/parallel_config.hpp"

namespace hyperslab::mesh {

/// Place of a rank on the axes of the mesh.
struct Coordinates {
  int data = 0;
  int pipeline = 0;
  int context = 0;
  int tensor = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

/// World rank r = ((data * pipelines + pipeline) * contexts + context) * tensors + tensor: tensor
/// varies fastest, so that a tensor group lies on neighbouring ranks. The context axis is 1.
[[nodiscard]] Coordinates coordinates_of(const ParallelConfig& config, int world_rank);
[[nodiscard]] int world_rank_of(const ParallelConfig& config, const Coordinates& at);
/// "data 0, pipeline 1, tensor 1"
[[nodiscard]] std::string describe(const Coordinates& at);
/// "data 2 x tensor 2 x pipeline 1"
[[nodiscard]] std::string describe(const ParallelConfig& config);

/// The groups of one rank, made once by splitting the world.
class Mesh {
 public:
  /// Collective over the world.
  Mesh(comm::World& world, Device device, const ParallelConfig& config);
  /// The mesh of one rank of a layout that is not started: communicators that only count.
  static Mesh plan(const ParallelConfig& config, int world_rank);

  [[nodiscard]] const ParallelConfig& config() const { return config_; }
  [[nodiscard]] const Coordinates& at() const { return at_; }
  [[nodiscard]] comm::Communicator& world_group() const { return *world_; }
  [[nodiscard]] comm::Communicator& data_group() const { return *data_; }

 private:
  Mesh(const ParallelConfig& config, int world_rank);
  ParallelConfig config_;
  Coordinates at_;
  std::unique_ptr<comm::Communicator> world_;
  std::unique_ptr<comm::Communicator> data_;
};

}  // namespace hyperslab::mesh
