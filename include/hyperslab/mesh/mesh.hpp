// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/mesh/parallel_config.hpp"

namespace hyperslab::mesh {

/// The coordinates of a rank on the axes of the mesh.
struct Coordinates {
  int data = 0;
  int pipeline = 0;
  int context = 0;
  int tensor = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

/// World rank r = ((data * pipelines + pipeline) * contexts + context) * tensors + tensor: tensor
/// varies fastest, so that a tensor group lies on neighbouring ranks.
[[nodiscard]] Coordinates coordinates_of(const ParallelConfig& config, int world_rank);
[[nodiscard]] int world_rank_of(const ParallelConfig& config, const Coordinates& at);
/// "data 0, pipeline 1, tensor 1"
[[nodiscard]] std::string describe(const Coordinates& at);
/// "data 2 x tensor 2 x pipeline 1"
[[nodiscard]] std::string describe(const ParallelConfig& config);

/// The groups that a model and a deck need beyond the axes' groups.
struct GroupNeeds {
  bool tied_ends = false;      ///< the first and the last pipeline stage hold the same table
  int key_value_replicas = 1;  ///< ranks of a tensor group that hold the same key-value head
  bool timed = false;          ///< GPUs: every group but data, whose reductions always are
};

/// The groups of one rank, made once by splitting the world.
class Mesh {
 public:
  /// Collective over the world.
  Mesh(comm::World& world, Device device, const ParallelConfig& config,
       const GroupNeeds& needs = {});
  /// The mesh of one rank of a layout that is not started: communicators that only count.
  static Mesh plan(const ParallelConfig& config, int world_rank, const GroupNeeds& needs = {});

  [[nodiscard]] const ParallelConfig& config() const { return config_; }
  [[nodiscard]] const Coordinates& at() const { return at_; }
  [[nodiscard]] bool is_first_stage() const { return at_.pipeline == 0; }
  [[nodiscard]] bool is_last_stage() const { return at_.pipeline == config_.pipeline - 1; }
  [[nodiscard]] comm::Communicator& world_group() const { return *world_; }
  /// Ranks that hold the same parameters and take other samples.
  [[nodiscard]] comm::Communicator& data_group() const { return *data_; }
  /// Ranks that share every layer.
  [[nodiscard]] comm::Communicator& tensor_group() const { return *tensor_; }
  /// Ranks that hold the layers one after the other.
  [[nodiscard]] comm::Communicator& pipeline_group() const { return *pipeline_; }
  /// The two ends of a pipeline; null on other ranks, and if nothing is tied.
  [[nodiscard]] comm::Communicator* tied_group() const { return tied_.get(); }
  /// Ranks that hold the same key-value heads; null if every rank has its own.
  [[nodiscard]] comm::Communicator* key_value_group() const { return key_value_.get(); }
  /// World ranks of the members of one of these groups in which this rank is, in their order.
  [[nodiscard]] std::vector<int> members(comm::GroupRole role) const;
  /// All of these but the world's, for counting.
  [[nodiscard]] std::vector<comm::Communicator*> groups() const;

 private:
  Mesh(const ParallelConfig& config, int world_rank, const GroupNeeds& needs);
  ParallelConfig config_;
  GroupNeeds needs_;
  Coordinates at_;
  std::unique_ptr<comm::Communicator> world_;
  std::unique_ptr<comm::Communicator> data_;
  std::unique_ptr<comm::Communicator> tensor_;
  std::unique_ptr<comm::Communicator> pipeline_;
  std::unique_ptr<comm::Communicator> tied_;
  std::unique_ptr<comm::Communicator> key_value_;
};

/// A line for every rank, "rank host device data pipeline tensor", with a header; collective.
/// `device` names this rank's.
[[nodiscard]] std::string placement_table(comm::World& world, const ParallelConfig& config,
                                          const std::string& device);
/// Names the tensor groups that have ranks on several hosts, whose every layer waits for the
/// network; empty if none has. Collective.
[[nodiscard]] std::string placement_warning(comm::World& world, const ParallelConfig& config);

}  // namespace hyperslab::mesh
