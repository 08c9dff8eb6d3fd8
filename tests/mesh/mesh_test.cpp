// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/mesh/mesh.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <tuple>

#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using comm::GroupRole;
using mesh::Axis;
using mesh::kAxes;
using mesh::kGradients;
using mesh::kSamples;
using mesh::kShards;
using mesh::kWorld;
using mesh::Mesh;
using mesh::ParallelConfig;
using mesh::Position;

TEST(Position, IsThatOfExactlyOneRank) {
  const ParallelConfig config{.data = 2, .tensor = 5, .pipeline = 3};
  std::set<std::tuple<int, int, int>> seen;

  for (int rank = 0; rank < config.ranks(); ++rank) {
    const Position at(config, rank);
    seen.insert({at.at(kSamples), at.at(Axis::pipeline), at.at(Axis::tensor)});
    EXPECT_EQ(at.world_rank(), rank);
    for (const Axis axis : kAxes) EXPECT_LT(at.at(axis), config.size(axis));
  }

  EXPECT_EQ(config.ranks(), 30);
  EXPECT_EQ(seen.size(), 30U);
}

TEST(Position, TensorVariesFastestAndDataSlowest) {
  const Position first({.data = 2, .tensor = 2, .pipeline = 2}, 0);

  EXPECT_EQ(first.moved(Axis::tensor, 1).world_rank(), 1);
  EXPECT_EQ(first.moved(Axis::pipeline, 1).world_rank(), 2);
  EXPECT_EQ(first.moved(kSamples, 1).world_rank(), 4);
}

TEST(Position, KnowsTheMembersOfItsGroups) {
  const Position at({.data = 2, .tensor = 2, .pipeline = 3}, 9);

  EXPECT_EQ(at.members(Axis::tensor), (std::vector{8, 9}));
  EXPECT_EQ(at.members(Axis::pipeline), (std::vector{7, 9, 11}));
  EXPECT_EQ(at.members(kGradients), (std::vector{3, 9}));
  EXPECT_EQ(at.members({Axis::fold, Axis::tensor}), (std::vector{2, 3, 8, 9}));
  EXPECT_EQ(at.members(kWorld).size(), 12U);
  EXPECT_EQ(at.at({Axis::fold, Axis::tensor}), 3);
  EXPECT_TRUE(at.is_last(Axis::tensor));
  EXPECT_FALSE(at.is_first(Axis::pipeline) || at.is_last(Axis::pipeline));
}

TEST(Position, ContextRanksLieBetweenPipelineAndTensor) {
  const ParallelConfig config{.data = 2, .tensor = 2, .pipeline = 2, .context = 3};
  const Position at(config, 9);  // data 0, pipeline 1, context 1, tensor 1

  EXPECT_EQ(config.ranks(), 24);
  EXPECT_EQ(at.members(Axis::context), (std::vector{7, 9, 11}));
  EXPECT_EQ(at.members(kGradients), (std::vector{7, 9, 11, 19, 21, 23}));
  EXPECT_EQ(at.at(kSamples), 0);
  EXPECT_EQ(describe(at), "data 0, tensor 1, pipeline 1, context 1");
  EXPECT_EQ(describe(config), "data 2 x tensor 2 x pipeline 2 x context 3");
}

TEST(Mesh, StateIsSharedAlongContextToo) {
  const Mesh mesh = Mesh::plan({.data = 4, .context = 2, .zero = 1, .shard = 2}, 5);

  EXPECT_EQ(mesh.group(kGradients).size(), 8);
  EXPECT_EQ(mesh.group(kGradients).role(), GroupRole::data);
  EXPECT_EQ(mesh.group(kShards).size(), 4);
  EXPECT_EQ(mesh.group(kShards).rank(), 1);
  EXPECT_EQ(mesh.group(Axis::replica).size(), 2);
  ASSERT_NE(mesh.context_group(), nullptr);
  EXPECT_EQ(mesh.context_group()->role(), GroupRole::context);
  EXPECT_EQ(mesh.context_group()->rank(), 1);
  EXPECT_EQ(mesh.members(GroupRole::context), (std::vector{4, 5}));
  EXPECT_EQ(Mesh::plan({.context = 2}, 1).group(Axis::context).role(), GroupRole::data);
  EXPECT_EQ(Mesh::plan({.data = 2}, 1).context_group(), nullptr);
}

TEST(Position, ExpertRanksAreTheNearestDataRanks) {
  ParallelConfig config{.data = 8, .tensor = 2, .context = 2, .shard = 4};
  const Position without(config, 31);
  config.expert = 2;
  const Position at(config, 27);  // replica 1, fold 1, expert 0, context 1, tensor 1

  EXPECT_EQ(config.ranks(), 32);
  EXPECT_EQ(config.shards(), 8);
  EXPECT_EQ(at.size(Axis::replica), 2);
  EXPECT_EQ(at.size(Axis::fold), 2);
  EXPECT_EQ(at.size(Axis::expert), 2);
  EXPECT_EQ(at.at(Axis::fold), 1);
  EXPECT_EQ(at.at(Axis::expert), 0);
  EXPECT_EQ(at.at(kSamples), 6);
  EXPECT_EQ(at.members(Axis::expert), (std::vector{27, 31}));
  EXPECT_EQ(at.members(mesh::kExpertShards), (std::vector{17, 19, 25, 27}));
  EXPECT_EQ(at.members(mesh::kExpertGradients), (std::vector{1, 3, 9, 11, 17, 19, 25, 27}));
  EXPECT_EQ(Position(config, 31).members(kShards), without.members(kShards));
  EXPECT_EQ(Position(config, 31).members(kGradients), without.members(kGradients));
  EXPECT_EQ(describe(at), "data 6 (expert 0), tensor 1, pipeline 0, context 1");
  EXPECT_EQ(describe(config), "data 8 (expert 2) x tensor 2 x pipeline 1 x context 2");
}

TEST(Mesh, ExpertsHaveGroupsOfTheirOwn) {
  const Mesh mesh = Mesh::plan({.data = 8, .context = 2, .zero = 1, .shard = 4, .expert = 2}, 13);

  ASSERT_NE(mesh.expert_group(), nullptr);
  EXPECT_EQ(mesh.expert_group()->role(), GroupRole::expert);
  EXPECT_EQ(mesh.expert_group()->size(), 2);
  EXPECT_EQ(mesh.expert_group()->rank(), 0);
  EXPECT_EQ(mesh.members(GroupRole::expert), (std::vector{13, 15}));
  EXPECT_EQ(mesh.group(mesh::kExpertGradients).role(), GroupRole::expert_data);
  EXPECT_EQ(mesh.group(mesh::kExpertGradients).size(), 8);
  EXPECT_EQ(mesh.group(mesh::kExpertGradients).rank(), 7);
  EXPECT_EQ(mesh.group(mesh::kExpertShards).role(), GroupRole::expert_shard);
  EXPECT_EQ(mesh.group(mesh::kExpertShards).size(), 4);
  EXPECT_EQ(mesh.group(kShards).size(), 8);
  EXPECT_EQ(mesh.group(kGradients).size(), 16);
}

TEST(Mesh, ExpertsWithoutCopiesOrOthersHaveOneGroup) {
  const Mesh two = Mesh::plan({.data = 4, .expert = 2}, 1);
  EXPECT_EQ(&two.group(mesh::kExpertShards), &two.group(mesh::kExpertGradients));
  EXPECT_EQ(two.group(mesh::kExpertShards).size(), 2);
  const Mesh one = Mesh::plan({.data = 2, .tensor = 2, .pipeline = 2, .expert = 2}, 1);
  EXPECT_EQ(one.group(mesh::kExpertShards).size(), 1);
  EXPECT_EQ(one.group(Axis::expert).role(), GroupRole::data) << "gradients of all else";
  const Mesh copies = Mesh::plan({.data = 4, .zero = 1, .shard = 2, .expert = 2}, 1);
  EXPECT_EQ(copies.group(mesh::kExpertShards).size(), 1);
  EXPECT_EQ(copies.group(mesh::kExpertGradients).size(), 2);
  const Mesh none = Mesh::plan({.data = 4, .zero = 1, .shard = 2}, 1);
  EXPECT_EQ(none.expert_group(), nullptr);
  EXPECT_EQ(&none.group(mesh::kExpertShards), &none.group(kShards));
  EXPECT_EQ(&none.group(mesh::kExpertGradients), &none.group(kGradients));
  EXPECT_EQ(none.groups().size(), 5U);
}

TEST(Position, TakesAnySizesOfTheAxes) {
  const Position at({2, 1, 3, 1, 2, 1}, 9);

  EXPECT_EQ(at.size(kWorld), 12);
  EXPECT_EQ(at.at(Axis::replica), 1);
  EXPECT_EQ(at.at(Axis::expert), 1);
  EXPECT_EQ(at.at(Axis::context), 1);
  EXPECT_EQ(at.members(Axis::expert), (std::vector{7, 9, 11}));
}

TEST(Position, FindsGroupsThatSpanHosts) {
  ParallelConfig config;
  config.data = 4;
  config.tensor = 2;
  config.shard = 2;
  const std::array<std::string, 8> in_turn = {"a", "b", "a", "b", "a", "b", "a", "b"};
  const std::array<std::string, 8> halves = {"a", "a", "a", "a", "b", "b", "b", "b"};
  const std::array<std::string, 8> thirds = {"a", "a", "b", "b", "b", "b", "a", "a"};
  EXPECT_EQ(groups_over_hosts(config, Axis::tensor, halves), "");
  EXPECT_EQ(groups_over_hosts(config, Axis::tensor, in_turn), "0, 1; 2, 3; 4, 5; 6, 7");
  EXPECT_EQ(groups_over_hosts(config, kShards, halves), "");
  EXPECT_EQ(groups_over_hosts(config, kShards, in_turn), "");
  EXPECT_EQ(groups_over_hosts(config, kShards, thirds), "0, 2; 1, 3; 4, 6; 5, 7");
  EXPECT_EQ(groups_over_hosts(config, Axis::replica, halves), "0, 4; 1, 5; 2, 6; 3, 7");
}

TEST(Mesh, PlansTheGroupsThatAreAskedFor) {
  const std::array groups = {mesh::AxisSet{Axis::replica, Axis::context}};
  const Mesh mesh = Mesh::plan(Position({2, 1, 3, 1, 2, 1}, 9), groups);

  EXPECT_EQ(mesh.group({Axis::replica, Axis::context}).size(), 4);
  EXPECT_EQ(mesh.group({Axis::replica, Axis::context}).rank(), 3);
  EXPECT_EQ(mesh.group(kWorld).size(), 12);
  expect_error(ExitCode::internal, {"no group over replica and expert"}, [&] {
    (void)mesh.group({Axis::replica, Axis::expert});
  });
}

TEST(Mesh, OneGroupServesSetsThatDifferInAxesOfOneRank) {
  const Mesh mesh = Mesh::plan({.data = 2, .tensor = 2}, 3);

  EXPECT_EQ(&mesh.group(kGradients), &mesh.group(kSamples));
  EXPECT_EQ(&mesh.group(kShards), &mesh.group(kSamples));
  EXPECT_EQ(&mesh.group({Axis::context, Axis::tensor}), &mesh.group(Axis::tensor));
  EXPECT_EQ(mesh.group({Axis::fold, Axis::tensor}).role(), GroupRole::world);
}

TEST(Mesh, ASetOfGradientsIsServedByTheDataGroupWhateverElseHasOneRank) {
  for (const ParallelConfig& config :
       {ParallelConfig{}, ParallelConfig{.data = 2}, ParallelConfig{.tensor = 2},
        ParallelConfig{.pipeline = 2}, ParallelConfig{.data = 2, .tensor = 2, .pipeline = 2}}) {
    EXPECT_EQ(Mesh::plan(config, 0).group(kGradients).role(), GroupRole::data);
  }
}

TEST(Mesh, GivesEveryGroupItsRole) {
  const ParallelConfig config{.data = 2, .tensor = 4, .pipeline = 2};

  const Mesh mesh = Mesh::plan(config, 13, {.tied_ends = true, .key_value_replicas = 2});

  EXPECT_EQ(mesh.group(kWorld).role(), GroupRole::world);
  EXPECT_EQ(mesh.group(kSamples).role(), GroupRole::data);
  EXPECT_EQ(mesh.group(Axis::tensor).role(), GroupRole::tensor);
  EXPECT_EQ(mesh.group(Axis::pipeline).role(), GroupRole::pipeline);
  ASSERT_NE(mesh.tied_group(), nullptr);
  EXPECT_EQ(mesh.tied_group()->role(), GroupRole::tied);
  ASSERT_NE(mesh.key_value_group(), nullptr);
  EXPECT_EQ(mesh.key_value_group()->role(), GroupRole::key_value);
  EXPECT_EQ(mesh.key_value_group()->name(), "key_value");
  EXPECT_EQ(mesh.groups().size(), 5U);
}

}  // namespace
}  // namespace hyperslab::test
