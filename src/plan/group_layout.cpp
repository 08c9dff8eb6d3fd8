// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "hyperslab/comm/group_role.hpp"
#include "hyperslab/mesh/position.hpp"
#include "hyperslab/plan/simulate.hpp"

namespace hyperslab::plan {
namespace {

/// Axes of the groups that layers with experts add.
mesh::AxisSet axes_of_experts(std::string_view group) {
  if (group == comm::name_of(comm::GroupRole::expert)) return mesh::Axis::expert;
  if (group == comm::name_of(comm::GroupRole::expert_data)) return mesh::kExpertGradients;
  if (group == comm::name_of(comm::GroupRole::expert_shard)) return mesh::kExpertShards;
  return {};
}

GroupLayout spread(int ranks, int on_a_node) {
  GroupLayout layout{.ranks = ranks, .ranks_per_node = std::clamp(on_a_node, 1, ranks)};
  layout.nodes = (ranks + layout.ranks_per_node - 1) / layout.ranks_per_node;
  return layout;
}

}  // namespace

GroupLayout layout_of(std::string_view group, const mesh::ParallelConfig& parallel,
                      int ranks_per_node) {
  if (const auto axes = axes_of_experts(group); !axes.empty()) {
    const std::vector<int> members = mesh::Position(parallel, 0).members(axes);
    const auto here =
        std::ranges::count_if(members, [&](int rank) { return rank < ranks_per_node; });
    return spread(static_cast<int>(members.size()), static_cast<int>(here));
  }
  int ranks = 1;
  int stride = 1;
  const int inner = parallel.tensor * parallel.context;
  // Without a pipeline the context ranks of all samples follow each other.
  const int of_samples = parallel.pipeline == 1 ? parallel.tensor : inner * parallel.pipeline;
  if (group == comm::name_of(comm::GroupRole::tensor) ||
      group == comm::name_of(comm::GroupRole::key_value)) {
    ranks = parallel.tensor;
  } else if (group == comm::name_of(comm::GroupRole::pipeline)) {
    ranks = parallel.pipeline;
    stride = inner;
  } else if (group == comm::name_of(comm::GroupRole::context)) {
    ranks = parallel.context;
    stride = parallel.tensor;
  } else if (group == comm::name_of(comm::GroupRole::tied)) {
    ranks = 2;
    stride = inner * (parallel.pipeline - 1);
  } else if (group == comm::name_of(comm::GroupRole::data)) {
    ranks = parallel.data * parallel.context;
    stride = parallel.data > 1 ? of_samples : parallel.tensor;
  } else if (group == comm::name_of(comm::GroupRole::shard)) {
    ranks = parallel.shards();
    stride = parallel.data_shards() > 1 ? of_samples : parallel.tensor;
  } else if (group == comm::name_of(comm::GroupRole::replica)) {
    ranks = parallel.size(mesh::Axis::replica);
    stride = inner * parallel.pipeline * parallel.data_shards();
  } else if (group == comm::name_of(comm::GroupRole::world)) {
    ranks = parallel.ranks();
  }
  return spread(ranks, ranks_per_node / std::max(1, stride));
}

}  // namespace hyperslab::plan
