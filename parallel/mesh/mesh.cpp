// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/mesh/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/core/error.hpp"

namespace hyperslab::mesh {

using comm::GroupRole;

Coordinates coordinates_of(const ParallelConfig& config, int world_rank) {
  const int contexts = world_rank / config.tensor;
  const int stages = contexts / config.context;
  return {.data = stages / config.pipeline,
          .pipeline = stages % config.pipeline,
          .context = contexts % config.context,
          .tensor = world_rank % config.tensor};
}

int world_rank_of(const ParallelConfig& config, const Coordinates& at) {
  const int stage = at.data * config.pipeline + at.pipeline;
  return (stage * config.context + at.context) * config.tensor + at.tensor;
}

std::string describe(const Coordinates& at) {
  return "data " + std::to_string(at.data) + ", pipeline " + std::to_string(at.pipeline) +
         ", tensor " + std::to_string(at.tensor);
}

std::string describe(const ParallelConfig& config) {
  return "data " + std::to_string(config.data) + " x tensor " + std::to_string(config.tensor) +
         " x pipeline " + std::to_string(config.pipeline);
}

Mesh::Mesh(const ParallelConfig& config, int world_rank, const GroupNeeds& needs)
    : config_(config), needs_(needs), at_(coordinates_of(config, world_rank)) {
  needs_.tied_ends = needs.tied_ends && config.pipeline > 1;
}

Mesh::Mesh(comm::World& world, Device device, const ParallelConfig& config, const GroupNeeds& needs)
    : Mesh(config, world.rank(), needs) {
  world_ = world.communicator(device, GroupRole::world);
  world_->report_reductions(false);  // the step's sums, not gradients
  const auto [data, pipeline, context, tensor] = at_;
  const auto color = [&](const Coordinates& first) { return world_rank_of(config, first); };
  data_ = world_->split(color({0, pipeline, context, tensor}), data, GroupRole::data);
  tensor_ = world_->split(color({data, pipeline, context, 0}), tensor, GroupRole::tensor);
  tensor_->report_reductions(false);
  pipeline_ = world_->split(color({data, 0, context, tensor}), pipeline, GroupRole::pipeline);
  if (needs_.tied_ends) {
    const bool end = is_first_stage() || is_last_stage();
    // The ranks between make groups of their own, which they drop.
    tied_ = world_->split(color({data, end ? 0 : pipeline, context, tensor}), pipeline,
                          GroupRole::tied);
    if (!end) tied_.reset();
  }
  if (needs_.key_value_replicas > 1) {
    const int first = tensor / needs_.key_value_replicas * needs_.key_value_replicas;
    key_value_ =
        world_->split(color({data, pipeline, context, first}), tensor, GroupRole::key_value);
    key_value_->report_reductions(false);
  }
  for (comm::Communicator* group : groups()) {
    // The clock of the data group adds up gradient reductions alone.
    if (group != data_.get()) group->time_operations(needs_.timed);
  }
  world_->time_operations(needs_.timed);
}

Mesh Mesh::plan(const ParallelConfig& config, int world_rank, const GroupNeeds& needs) {
  Mesh mesh(config, world_rank, needs);
  const Coordinates& at = mesh.at_;
  const auto group = [](GroupRole role, int rank, int size) {
    return comm::make_meta_communicator(role, rank, size);
  };
  mesh.world_ = group(GroupRole::world, world_rank, config.ranks());
  mesh.data_ = group(GroupRole::data, at.data, config.data);
  mesh.tensor_ = group(GroupRole::tensor, at.tensor, config.tensor);
  mesh.pipeline_ = group(GroupRole::pipeline, at.pipeline, config.pipeline);
  if (mesh.needs_.tied_ends && (mesh.is_first_stage() || mesh.is_last_stage())) {
    mesh.tied_ = group(GroupRole::tied, mesh.is_first_stage() ? 0 : 1, 2);
  }
  if (needs.key_value_replicas > 1) {
    mesh.key_value_ =
        group(GroupRole::key_value, at.tensor % needs.key_value_replicas, needs.key_value_replicas);
  }
  return mesh;
}

std::vector<int> Mesh::members(GroupRole role) const {
  std::vector<int> ranks;
  Coordinates at = at_;
  const auto along = [&](int& coordinate, int first, int count) {
    for (int i = 0; i < count; ++i) {
      coordinate = first + i;
      ranks.push_back(world_rank_of(config_, at));
    }
  };
  switch (role) {
    case GroupRole::data: along(at.data, 0, config_.data); break;
    case GroupRole::tensor: along(at.tensor, 0, config_.tensor); break;
    case GroupRole::pipeline: along(at.pipeline, 0, config_.pipeline); break;
    case GroupRole::tied:
      along(at.pipeline, 0, 1);
      along(at.pipeline, config_.pipeline - 1, 1);
      break;
    case GroupRole::key_value: {
      const int replicas = needs_.key_value_replicas;
      along(at.tensor, at_.tensor / replicas * replicas, replicas);
      break;
    }
    case GroupRole::world:
      for (int rank = 0; rank < config_.ranks(); ++rank) ranks.push_back(rank);
      break;
    default: throw Error(ExitCode::internal, "a mesh has no such group");
  }
  return ranks;
}

std::vector<comm::Communicator*> Mesh::groups() const {
  std::vector<comm::Communicator*> all = {data_.get(), tensor_.get(), pipeline_.get()};
  if (tied_) all.push_back(tied_.get());
  if (key_value_) all.push_back(key_value_.get());
  return all;
}

std::string placement_table(comm::World& world, const ParallelConfig& config,
                            const std::string& device) {
  const std::vector<std::string> devices = world.all_gather(world.host() + "  " + device);
  std::string table = "rank  data  pipeline  tensor  host  device";
  for (int rank = 0; rank < world.size(); ++rank) {
    const Coordinates at = coordinates_of(config, rank);
    table += fmt::format("\n{:>4}  {:>4}  {:>8}  {:>6}  {}", rank, at.data, at.pipeline, at.tensor,
                         devices[static_cast<std::size_t>(rank)]);
  }
  return table;
}

std::string placement_warning(comm::World& world, const ParallelConfig& config) {
  const std::vector<std::string> hosts = world.all_gather(world.host());
  std::string groups;
  for (int first = 0; first < world.size(); first += config.tensor) {
    const auto begin = hosts.begin() + first;
    if (std::all_of(begin, begin + config.tensor, [&](const auto& host) { return host == *begin; }))
      continue;
    groups += fmt::format("{}{}-{}", groups.empty() ? "" : ", ", first, first + config.tensor - 1);
  }
  if (groups.empty()) return {};
  return fmt::format(
      "the tensor groups of ranks {} have members on several hosts, so that every layer waits for "
      "the network; let parallel.tensor divide the ranks of a host",
      groups);
}

}  // namespace hyperslab::mesh
