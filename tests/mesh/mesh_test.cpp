// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/mesh/mesh.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace hyperslab::test {
namespace {

using comm::GroupRole;
using mesh::Coordinates;
using mesh::Mesh;
using mesh::ParallelConfig;

TEST(Coordinates, AreThoseOfExactlyOneRank) {
  const ParallelConfig config{.data = 2, .tensor = 5, .pipeline = 3, .context = 2};
  std::set<std::tuple<int, int, int, int>> seen;

  for (int rank = 0; rank < config.ranks(); ++rank) {
    const Coordinates at = coordinates_of(config, rank);
    seen.insert({at.data, at.pipeline, at.context, at.tensor});
    EXPECT_EQ(world_rank_of(config, at), rank);
    EXPECT_LT(at.data, config.data);
    EXPECT_LT(at.pipeline, config.pipeline);
    EXPECT_LT(at.context, config.context);
    EXPECT_LT(at.tensor, config.tensor);
  }

  EXPECT_EQ(config.ranks(), 60);
  EXPECT_EQ(seen.size(), 60U);
}

TEST(Coordinates, TensorVariesFastestAndDataSlowest) {
  const ParallelConfig config{.data = 2, .tensor = 2, .pipeline = 2, .context = 2};

  EXPECT_EQ(world_rank_of(config, {.tensor = 1}), 1);
  EXPECT_EQ(world_rank_of(config, {.context = 1}), 2);
  EXPECT_EQ(world_rank_of(config, {.pipeline = 1}), 4);
  EXPECT_EQ(world_rank_of(config, {.data = 1}), 8);
}

TEST(Mesh, GivesEveryGroupItsRole) {
  const ParallelConfig config{.data = 2, .tensor = 4, .pipeline = 2};

  const Mesh mesh = Mesh::plan(config, 13, {.tied_ends = true, .key_value_replicas = 2});

  EXPECT_EQ(mesh.world_group().role(), GroupRole::world);
  EXPECT_EQ(mesh.data_group().role(), GroupRole::data);
  EXPECT_EQ(mesh.tensor_group().role(), GroupRole::tensor);
  EXPECT_EQ(mesh.pipeline_group().role(), GroupRole::pipeline);
  ASSERT_NE(mesh.tied_group(), nullptr);
  EXPECT_EQ(mesh.tied_group()->role(), GroupRole::tied);
  ASSERT_NE(mesh.key_value_group(), nullptr);
  EXPECT_EQ(mesh.key_value_group()->role(), GroupRole::key_value);
  EXPECT_EQ(mesh.key_value_group()->name(), "key_value");
  EXPECT_EQ(mesh.groups().size(), 5U);
}

}  // namespace
}  // namespace hyperslab::test
