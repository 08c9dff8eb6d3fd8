// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/mesh/position.hpp"

namespace hyperslab::mesh {

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
  /// A mesh with any sizes of the axes, whose config() is the default one: `position` is this rank
  /// of the world, and there are groups along each of `groups` and kWorld. Collective.
  static Mesh over(comm::World& world, Device device, const Position& position,
                   std::span<const AxisSet> groups);
  /// Such a mesh of one rank that is not started.
  static Mesh plan(const Position& position, std::span<const AxisSet> groups);

  [[nodiscard]] const ParallelConfig& config() const { return config_; }
  [[nodiscard]] const Position& position() const { return position_; }
  [[nodiscard]] int at(AxisSet axes) const { return position_.at(axes); }
  [[nodiscard]] int size(AxisSet axes) const { return position_.size(axes); }
  /// The group along `axes`, which is kGradients, kShards, Axis::replica, Axis::pipeline,
  /// Axis::tensor or kWorld, with several expert ranks kExpertGradients or
  /// kExpertShards, or was asked for. Throws an internal Error that names the axes if
  /// there is none.
  [[nodiscard]] comm::Communicator& group(AxisSet axes) const;
  /// Ranks that exchange the tokens of the same samples; null if every rank has all. Parameters
  /// move through group(), which serves Axis::context with the group of kGradients or kShards.
  [[nodiscard]] comm::Communicator* context_group() const { return context_.get(); }
  /// Ranks that hold other experts and exchange tokens; null if every rank holds all. group() does
  /// not serve Axis::expert with it.
  [[nodiscard]] comm::Communicator* expert_group() const { return expert_.get(); }
  /// The two ends of a pipeline; null on other ranks, and if nothing is tied.
  [[nodiscard]] comm::Communicator* tied_group() const { return tied_.get(); }
  /// Ranks that hold the same key-value heads; null if every rank has its own.
  [[nodiscard]] comm::Communicator* key_value_group() const { return key_value_.get(); }
  /// World ranks of this rank's group with a role, in their order.
  [[nodiscard]] std::vector<int> members(comm::GroupRole role) const;
  /// All of these but the world's, for counting.
  [[nodiscard]] std::vector<comm::Communicator*> groups() const;

 private:
  explicit Mesh(const Position& position) : position_(position) {}
  Mesh(const ParallelConfig& config, int world_rank, const GroupNeeds& needs);
  [[nodiscard]] bool is_end() const;  ///< true on both ends of the pipeline
  ParallelConfig config_;
  GroupNeeds needs_;
  Position position_;
  struct Group {
    AxisSet axes;
    std::unique_ptr<comm::Communicator> ranks;
  };
  std::vector<Group> groups_;  ///< the world's last: the others come first for a set that differs
                               ///< in axes of one rank
  std::unique_ptr<comm::Communicator> context_;
  std::unique_ptr<comm::Communicator> expert_;
  std::unique_ptr<comm::Communicator> tied_;
  std::unique_ptr<comm::Communicator> key_value_;
};

/// A line for every rank with its places on the axes, host and device, with a header; collective.
/// `device` names this rank's.
[[nodiscard]] std::string placement_table(comm::World& world, const ParallelConfig& config,
                                          const std::string& device);
/// The ranks of groups along `axes` that have members on several of `hosts`, which are in order of
/// rank: "0, 2; 1, 3". Empty: there are none.
[[nodiscard]] std::string groups_over_hosts(const ParallelConfig& config, AxisSet axes,
                                            std::span<const std::string> hosts);
/// Names the tensor groups, or with parallel.shard below parallel.data the groups that share
/// shards, whose members lie on several hosts; empty: there are none. Collective.
[[nodiscard]] std::string placement_warning(comm::World& world, const ParallelConfig& config);

}  // namespace hyperslab::mesh
