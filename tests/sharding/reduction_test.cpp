// SPDX-License-Identifier: Apache-2.0
// Gradients that were summed while backward ran, against sums over all terms.
#include "sharding/ranks.hpp"

namespace hyperslab {
namespace {

using test::Layout;
using test::RankOfLayout;
using test::world;

constexpr int kSteps = 2;

/// Sums in their positions, zeros in gaps and padding; with zero 0 everywhere, else in the shards.
void expect_sums(RankOfLayout& rank, int step, int microbatches) {
  const param::ParamGroup& group = rank.group();
  const std::vector<float> expected = test::brute_force_flat(
      rank.layout(), rank.table(), rank.mesh().position(), step, microbatches);
  for (const param::ElementRange& range : rank.presence.values().updated_ranges()) {
    const View found = rank.presence.gradients().sums().at(range);
    const float* values = found.data<float>();
    for (Dim i = 0; i < found.numel(); ++i) {
      ASSERT_EQ(values[i], expected[static_cast<std::size_t>(range.in_flat + i)])
          << "flat element " << range.in_flat + i << " of " << group.flat_size();
    }
  }
}

double squares(CView view) {
  double sum = 0;
  for (const float value : view.span<float>()) sum += static_cast<double>(value) * value;
  return sum;
}

/// Of every element of the model, whoever holds it.
double squares_of_model(const Layout& layout, std::size_t bucket_bytes, int step,
                        int microbatches) {
  std::map<std::pair<std::string, Dim>, float> model;
  for (int rank = 0; rank < world().size(); ++rank) {
    const mesh::Position at(layout.parallel(), rank);
    if (at.at(mesh::kExpertGradients) > 0) continue;
    const param::ParamStore table =
        test::make_table(layout.table(at, bucket_bytes), at.at(mesh::kGradients));
    for (const param::Param& param : table.params()) {
      const auto sums = test::brute_force(layout, param, at, step, microbatches);
      const Hyperslab whole = Hyperslab::whole(param.global_shape);
      const HyperslabRuns runs(param.part, whole, param.part);
      for (Dim i = 0; i < param.numel(); ++i) {
        const Dim element = runs[i / runs.length()].target + i % runs.length();
        const float value = sums[static_cast<std::size_t>(i)];
        const auto [held, is_new] = model.emplace(std::pair(param.name, element), value);
        EXPECT_EQ(held->second, value) << param.name << " is not the same on all its holders";
      }
    }
  }
  double sum = 0;
  for (const auto& [element, value] : model) sum += static_cast<double>(value) * value;
  return sum;
}

void expect_norm(RankOfLayout& rank, std::size_t bucket_bytes, int step, int microbatches) {
  double mine = 0;
  for (const View& view : rank.presence.gradients().norm_views()) mine += squares(view);
  EXPECT_EQ(world().sum(mine), squares_of_model(rank.layout(), bucket_bytes, step, microbatches));
}

class Reduction : public testing::TestWithParam<int> {};

TEST_P(Reduction, SumsEveryGradientOnceAndCountsItsNormOnce) {
  const int zero = GetParam();
  for (const Layout& layout : test::layouts_of(world().size())) {
    if (zero == 0 && layout.shard > 0) continue;  // refused by the deck's rules
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    for (const std::size_t bucket_bytes :
         {std::size_t{1}, std::size_t{4000}, std::size_t{1} << 20}) {
      for (const int microbatches : {1, 3}) {
        for (const int units_at_once : {1, 0}) {
          SCOPED_TRACE(layout.str() + " zero " + std::to_string(zero) + " bucket bytes " +
                       std::to_string(bucket_bytes) + " microbatches " +
                       std::to_string(microbatches) + " units " + std::to_string(units_at_once));
          RankOfLayout rank(layout, mesh, zero, bucket_bytes);
          for (int step = 1; step <= kSteps; ++step) {
            rank.step(step, microbatches, units_at_once);
            expect_sums(rank, step, microbatches);
            expect_norm(rank, bucket_bytes, step, microbatches);
          }
        }
      }
    }
  }
}

TEST_P(Reduction, ReducesMoreOftenInAStepThanMayBeUnderWay) {
  for (const Layout& layout : test::layouts_of(world().size())) {
    if (layout.pipeline > 1 || layout.data < 2 || layout.tensor > 1 || layout.tied) continue;
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    RankOfLayout rank(layout, mesh, GetParam(), 1);
    const auto buckets = rank.group().buckets().size();
    const int microbatches = static_cast<int>(2 * comm::Communicator::kMaxUnderWay / buckets + 2);
    for (int step = 1; step <= kSteps; ++step) {
      rank.step(step, microbatches, 1);
      expect_sums(rank, step, microbatches);
    }
  }
}

std::int64_t bytes_of(const comm::Communicator& group, comm::Call call) {
  return group.traffic().bytes[static_cast<std::size_t>(call)];
}

/// A rank's experts in one bucket of f32, cut over so many ranks.
std::int64_t bytes_of_experts(const Layout& layout, int ranks) {
  const Dim of_an_expert = 128 + 128 + 32;  // 6 x 20 twice and 6, each from a multiple of 32 on
  const Dim elements = 2 * Layout::kExperts / layout.expert * of_an_expert;
  return 4 * ((elements + 32 * ranks - 1) / (32 * ranks) * 32 * ranks);
}

TEST_P(Reduction, SendsTheGradientsOfExpertsToThoseThatHoldThem) {
  constexpr int kMicrobatches = 3;
  const int zero = GetParam();
  for (const Layout& layout : test::layouts_with_experts(world().size())) {
    if (layout.tensor > 1 || layout.pipeline > 1 || (zero == 0 && layout.shard > 0)) continue;
    SCOPED_TRACE(layout.str());
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    RankOfLayout rank(layout, mesh, zero, std::size_t{1} << 20);
    rank.step(1, kMicrobatches, 1);

    const int ranks = mesh.size(mesh::kExpertShards);
    const std::int64_t bytes = bytes_of_experts(layout, ranks);
    const std::int64_t times = zero >= 2 ? kMicrobatches : 1;
    EXPECT_EQ(bytes_of(mesh.group(mesh::kExpertShards), comm::Call::reduce_scatter),
              zero == 0 || ranks == 1 ? 0 : times * bytes);
    EXPECT_EQ(bytes_of(mesh.group(mesh::kExpertGradients), comm::Call::all_reduce),
              zero > 0 || mesh.size(mesh::kExpertGradients) == 1 ? 0 : bytes);
    EXPECT_EQ(bytes_of(*mesh.expert_group(), comm::Call::all_reduce), 0);
    for (const sharding::NamedMovement& moved : rank.presence.gradients().movements(1)) {
      EXPECT_TRUE(std::ranges::any_of(moved.steps, &layout::Step::communicates)) << moved.what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, Reduction, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace hyperslab
