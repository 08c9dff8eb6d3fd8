// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/mesh/mesh.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::mesh {

using comm::GroupRole;

namespace {

struct Axes {
  AxisSet axes;
  GroupRole role;
};
constexpr std::array kGroups = {
    Axes{kGradients, GroupRole::data},           Axes{Axis::tensor, GroupRole::tensor},
    Axes{Axis::pipeline, GroupRole::pipeline},   Axes{kShards, GroupRole::shard},
    Axes{Axis::replica, GroupRole::replica},     Axes{kExpertGradients, GroupRole::expert_data},
    Axes{kExpertShards, GroupRole::expert_shard}};

/// True if a mesh has the group: the data group is cut in two if several ranks hold equal shards,
/// and so are the ranks that hold the same experts.
bool has_group(const Position& position, GroupRole role) {
  const bool has_copies = position.size(Axis::replica) > 1;
  const bool has_experts = position.size(Axis::expert) > 1;
  switch (role) {
    case GroupRole::shard:
    case GroupRole::replica: return has_copies && position.size(kShards) > 1;
    case GroupRole::expert_data: return has_experts;
    case GroupRole::expert_shard: return has_experts && has_copies;
    default: return true;
  }
}

/// True if a group's clock adds up gradient reductions alone.
bool sums_gradients(GroupRole role) {
  return role == GroupRole::data || role == GroupRole::shard || role == GroupRole::expert_data ||
         role == GroupRole::expert_shard;
}

}  // namespace

Mesh::Mesh(const ParallelConfig& config, int world_rank, const GroupNeeds& needs)
    : config_(config), needs_(needs), position_(config, world_rank) {
  needs_.tied_ends = needs.tied_ends && config.pipeline > 1;
}

Mesh::Mesh(comm::World& world, Device device, const ParallelConfig& config, const GroupNeeds& needs)
    : Mesh(config, world.rank(), needs) {
  auto whole = world.communicator(device, GroupRole::world);
  comm::Communicator& all = *whole;
  all.report_reductions(false);  // the step's sums, not gradients
  for (const auto& [axes, role] : kGroups) {
    if (!has_group(position_, role)) continue;
    const int color = position_.moved(axes, 0).world_rank();
    groups_.push_back({axes, all.split(color, at(axes), role)});
    if (axes == Axis::tensor) groups_.back().ranks->report_reductions(false);
  }
  groups_.push_back({kWorld, std::move(whole)});
  if (size(Axis::context) > 1) {
    const int first = position_.moved(Axis::context, 0).world_rank();
    context_ = all.split(first, at(Axis::context), GroupRole::context);
  }
  if (size(Axis::expert) > 1) {
    const int first = position_.moved(Axis::expert, 0).world_rank();
    expert_ = all.split(first, at(Axis::expert), GroupRole::expert);
    expert_->report_reductions(false);
  }
  const int tensor = at(Axis::tensor);
  const int stage = at(Axis::pipeline);
  if (needs_.tied_ends) {
    // The ranks between the ends make groups of their own, which they drop.
    const Position first = position_.moved(Axis::pipeline, is_end() ? 0 : stage);
    tied_ = all.split(first.world_rank(), stage, GroupRole::tied);
    if (!is_end()) tied_.reset();
  }
  if (needs_.key_value_replicas > 1) {
    const int first = tensor / needs_.key_value_replicas * needs_.key_value_replicas;
    key_value_ =
        all.split(position_.moved(Axis::tensor, first).world_rank(), tensor, GroupRole::key_value);
    key_value_->report_reductions(false);
  }
  for (comm::Communicator* one : groups()) {
    if (!sums_gradients(one->role())) one->time_operations(needs_.timed);
  }
  all.time_operations(needs_.timed);
}

Mesh Mesh::plan(const ParallelConfig& config, int world_rank, const GroupNeeds& needs) {
  Mesh mesh(config, world_rank, needs);
  const auto meta = [](GroupRole role, int rank, int size) {
    return comm::make_meta_communicator(role, rank, size);
  };
  for (const auto& [axes, role] : kGroups) {
    if (!has_group(mesh.position_, role)) continue;
    mesh.groups_.push_back({axes, meta(role, mesh.at(axes), mesh.size(axes))});
  }
  mesh.groups_.push_back({kWorld, meta(GroupRole::world, world_rank, config.ranks())});
  if (const int ranks = mesh.size(Axis::context); ranks > 1) {
    mesh.context_ = meta(GroupRole::context, mesh.at(Axis::context), ranks);
  }
  if (const int ranks = mesh.size(Axis::expert); ranks > 1) {
    mesh.expert_ = meta(GroupRole::expert, mesh.at(Axis::expert), ranks);
  }
  if (mesh.needs_.tied_ends && mesh.is_end()) {
    mesh.tied_ = meta(GroupRole::tied, mesh.position_.is_first(Axis::pipeline) ? 0 : 1, 2);
  }
  if (const int replicas = needs.key_value_replicas; replicas > 1) {
    mesh.key_value_ = meta(GroupRole::key_value, mesh.at(Axis::tensor) % replicas, replicas);
  }
  return mesh;
}

Mesh Mesh::over(comm::World& world, Device device, const Position& position,
                std::span<const AxisSet> groups) {
  require(position.size(kWorld) == world.size() && position.world_rank() == world.rank(),
          "a position is not this rank of the world");
  Mesh mesh(position);
  auto whole = world.communicator(device, GroupRole::world);
  for (const AxisSet axes : groups) {
    const int color = position.moved(axes, 0).world_rank();
    mesh.groups_.push_back({axes, whole->split(color, position.at(axes), GroupRole::other)});
  }
  mesh.groups_.push_back({kWorld, std::move(whole)});
  return mesh;
}

Mesh Mesh::plan(const Position& position, std::span<const AxisSet> groups) {
  Mesh mesh(position);
  const auto add = [&](AxisSet axes, GroupRole role) {
    const int size = position.size(axes);
    mesh.groups_.push_back({axes, comm::make_meta_communicator(role, position.at(axes), size)});
  };
  for (const AxisSet axes : groups) add(axes, GroupRole::other);
  add(kWorld, GroupRole::world);
  return mesh;
}

bool Mesh::is_end() const {
  return position_.is_first(Axis::pipeline) || position_.is_last(Axis::pipeline);
}

comm::Communicator& Mesh::group(AxisSet axes) const {
  auto found = std::ranges::find(groups_, axes, &Group::axes);
  if (found == groups_.end()) {
    // Axes of one rank make no difference.
    found = std::ranges::find_if(groups_, [&](const Group& group) {
      return std::ranges::all_of(kAxes, [&](Axis axis) {
        return size(axis) == 1 || group.axes.contains(axis) == axes.contains(axis);
      });
    });
  }
  if (found == groups_.end()) {
    throw Error(ExitCode::internal, "the mesh has no group over " + describe(axes));
  }
  return *found->ranks;
}

std::vector<int> Mesh::members(GroupRole role) const {
  if (role == GroupRole::world) return position_.members(kWorld);
  for (const auto& [axes, role_of_axes] : kGroups) {
    if (role == role_of_axes) return position_.members(axes);
  }
  if (role == GroupRole::context) return position_.members(Axis::context);
  if (role == GroupRole::expert) return position_.members(Axis::expert);
  const bool is_tied = role == GroupRole::tied;
  require(is_tied || role == GroupRole::key_value, "a mesh has no such group");
  const std::vector<int> all = position_.members(is_tied ? Axis::pipeline : Axis::tensor);
  if (is_tied) return {all.front(), all.back()};
  const int replicas = needs_.key_value_replicas;
  const auto first = all.begin() + (at(Axis::tensor) - at(Axis::tensor) % replicas);
  return {first, first + replicas};
}

std::vector<comm::Communicator*> Mesh::groups() const {
  std::vector<comm::Communicator*> all;
  for (const auto& [axes, ranks] : groups_) {
    if (axes != kWorld) all.push_back(ranks.get());
  }
  if (context_) all.push_back(context_.get());
  if (expert_) all.push_back(expert_.get());
  if (tied_) all.push_back(tied_.get());
  if (key_value_) all.push_back(key_value_.get());
  return all;
}

std::string placement_table(comm::World& world, const ParallelConfig& config,
                            const std::string& device) {
  const std::vector<std::string> devices = world.all_gather(world.host() + "  " + device);
  const auto column = [](bool is_there, const auto& entry) {
    return is_there ? fmt::format("  {:>7}", entry) : "";
  };
  const bool has_context = config.context > 1;
  const bool has_experts = config.expert > 1;
  std::string table = fmt::format("rank  data  tensor  pipeline{}{}  host  device",
                                  column(has_context, "context"), column(has_experts, "expert"));
  for (int rank = 0; rank < world.size(); ++rank) {
    const Position position(config, rank);
    table += fmt::format("\n{:>4}  {:>4}  {:>6}  {:>8}{}{}  {}", rank, position.at(kSamples),
                         position.at(Axis::tensor), position.at(Axis::pipeline),
                         column(has_context, position.at(Axis::context)),
                         column(has_experts, position.at(Axis::expert)),
                         devices[static_cast<std::size_t>(rank)]);
  }
  return table;
}

std::string groups_over_hosts(const ParallelConfig& config, AxisSet axes,
                              std::span<const std::string> hosts) {
  std::map<std::array<int, kAxes.size()>, std::vector<int>> groups;
  for (int rank = 0; rank < std::ssize(hosts); ++rank) {
    const Position position(config, rank);
    std::array<int, kAxes.size()> place{};  // on the other axes
    for (std::size_t i = 0; i < place.size(); ++i) {
      if (!axes.contains(kAxes.at(i))) place.at(i) = position.at(kAxes.at(i));
    }
    groups[place].push_back(rank);
  }
  std::string text;
  for (const auto& [place, ranks] : groups) {
    const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
    if (std::ranges::all_of(ranks, [&](int rank) { return host(rank) == host(ranks[0]); }))
      continue;
    text += fmt::format("{}{}", text.empty() ? "" : "; ", fmt::join(ranks, ", "));
  }
  return text;
}

std::string placement_warning(comm::World& world, const ParallelConfig& config) {
  const std::vector<std::string> hosts = world.all_gather(world.host());
  const std::string tensor = groups_over_hosts(config, Axis::tensor, hosts);
  if (!tensor.empty()) {
    return fmt::format(
        "tensor groups have members on several hosts (ranks {}), so that every layer waits for the "
        "network; let parallel.tensor divide the ranks of a host",
        tensor);
  }
  const bool is_hybrid = config.data_shards() < config.data;
  const std::string shards = is_hybrid ? groups_over_hosts(config, kShards, hosts) : "";
  if (shards.empty()) return {};
  return fmt::format(
      "ranks that share shards lie on several hosts (ranks {}), so that the gathers of "
      "parallel.shard go over the network; let parallel.shard x parallel.tensor divide the ranks "
      "of "
      "a host, and mpirun fill one host after the other (--map-by slot)",
      shards);
}

}  // namespace hyperslab::mesh
