// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts with losses of balance against one rank, tensor by tensor, over drawn
// layouts.
#include <gtest/gtest.h>

#include <array>

#include "hyperslab/parity/parity.hpp"
#include "support/mpi_world.hpp"
#include "train/layouts.hpp"

namespace hyperslab {
namespace {

using test::Case;
using test::world;

constexpr int kSteps = 3;
/// Layouts without experts have it, too.
constexpr parity::ParityTolerance kTolerance = {.gradient = 4e-6};

using Choices = std::vector<const char*>;

/// The most ranks that can hold different experts, up to 1, 4 or 2 in turn.
int expert_ranks(const Case& layout) {
  static int turn = 0;
  const int most = std::array{1, 4, 2}.at(static_cast<std::size_t>(turn++ % 3));
  int found = 1;
  for (int ranks = 2; ranks <= most; ranks *= 2) {
    Case more = layout;
    more.layout.push_back(fmt::format("parallel.expert={}", ranks));
    if (test::is_legal(more, world().size())) found = ranks;
  }
  return found;
}

/// The ways of tokens to their experts in turn. Memory for no more rows than equal loads have makes
/// some ranks take two parts.
void add_exchange_in_turn(std::vector<std::string>& layout) {
  static int turn = 0;
  const int way = turn++ % 4;
  layout.emplace_back(way == 0 ? "parallel.expert_exchange=all_to_all"
                               : "parallel.expert_exchange=all_gather");
  if (way != 1) layout.emplace_back("parallel.expert_rows=1");
}

/// Drawn layouts of the deck with experts.
class ExpertsParity : public testing::TestWithParam<Choices> {};

TEST_P(ExpertsParity, AgreesWithOneRankInEveryLayout) {
  constexpr std::size_t kLayouts = 9;
  std::size_t compared = 0;
  for (Case layout : test::draw_layouts(world().size(), 4 * kLayouts)) {
    layout.model.insert(layout.model.end(), {"model.family=llama", "model.bias=false"});
    layout.model.insert(layout.model.end(), GetParam().begin(), GetParam().end());
    layout.layout.emplace_back("memory.mlp_rows=0");
    layout.layout.push_back(fmt::format("parallel.expert={}", expert_ranks(layout)));
    if (compared == kLayouts || !test::is_legal(layout, world().size())) continue;
    add_exchange_in_turn(layout.layout);
    ++compared;
    SCOPED_TRACE(layout.str());
    const parity::LayoutTrace found = parity::trace_layout(
        world(), test::read_layout(layout.model, layout.layout, world().size()), kSteps);
    const parity::LayoutTrace expected =
        parity::trace_layout(world(), test::read_layout(layout.model, {}, 1), kSteps);
    if (world().rank() != 0) continue;
    const parity::ParityReport report = parity::compare(expected, found, kTolerance);
    EXPECT_TRUE(report.agrees) << report.rows.front().tensor << " "
                               << report.rows.front().difference << ", loss "
                               << report.loss_difference << " at step " << report.worst_step;
  }
  EXPECT_EQ(compared, kLayouts);
}

/// Samples that are balanced together are the same ones whatever the microbatch and the layout.
TEST(ExpertsBalance, OfABatchDoesNotDependOnMicrobatches) {
  const std::vector<std::string> model = {"model.family=llama",        "experts.count=4",
                                          "experts.width=24",          "experts.balance=batch",
                                          "experts.balance_samples=2", "experts.balance_weight=0.5",
                                          "train.global_batch=48"};
  const auto trace = [&](const std::vector<std::string>& layout, int ranks) {
    return parity::trace_layout(world(), test::read_layout(model, layout, ranks), kSteps);
  };
  const parity::LayoutTrace expected = trace({"train.microbatch=4"}, 1);
  const parity::LayoutTrace found = trace(
      {"train.microbatch=2", fmt::format("parallel.data={}", world().size())}, world().size());
  if (world().rank() != 0) return;
  const parity::ParityReport report = parity::compare(expected, found, kTolerance);
  EXPECT_TRUE(report.agrees) << report.rows.front().tensor << " " << report.rows.front().difference;
}

/// Layouts whose ranks have more rows than memory holds at once, or so many that no plan counts on
/// them: `layout` for all ranks, and steps enough that an operation nobody waits for is found.
struct UnevenCase {
  const char* what;
  int least_ranks;
  Choices model;
  Choices layout;
  int steps = kSteps;
};

class UnevenLoads : public testing::TestWithParam<UnevenCase> {};

TEST_P(UnevenLoads, AgreeWithOneRank) {
  const UnevenCase& uneven = GetParam();
  const bool has_stages = uneven.least_ranks > 2;
  const int data = world().size() / (has_stages ? 2 : 1);
  if (data % 2 != 0) GTEST_SKIP() << "for an even number of data ranks";
  std::vector<std::string> model = {"model.family=llama", "model.bias=false",
                                    "experts.balance_weight=0.3", "train.global_batch=48",
                                    "train.microbatch=2"};
  model.insert(model.end(), uneven.model.begin(), uneven.model.end());
  std::vector<std::string> layout = {"parallel.expert=2"};
  layout.insert(layout.end(), uneven.layout.begin(), uneven.layout.end());
  layout.push_back(fmt::format("parallel.data={}", data));
  if (has_stages) layout.emplace_back("parallel.pipeline=2");
  const parity::LayoutTrace found =
      parity::trace_layout(world(), test::read_layout(model, layout, world().size()), uneven.steps);
  const parity::LayoutTrace expected =
      parity::trace_layout(world(), test::read_layout(model, {}, 1), uneven.steps);
  if (world().rank() != 0) return;
  const parity::ParityReport report = parity::compare(expected, found, kTolerance);
  EXPECT_TRUE(report.agrees) << report.rows.front().tensor << " " << report.rows.front().difference;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, UnevenLoads,
    testing::Values(
        UnevenCase{"adapters_in_parts",
                   2,
                   {"experts.count=6", "experts.active=3", "experts.width=12", "adapter.rank=2",
                    "adapter.targets=[mlp.up,mlp.down]"},
                   {"parallel.expert_exchange=all_gather", "parallel.expert_rows=1"}},
        UnevenCase{"zero_bubble_in_parts",
                   4,
                   {"experts.count=4", "experts.width=24"},
                   {"parallel.expert_exchange=all_gather", "parallel.expert_rows=1",
                    "parallel.schedule=zero_bubble", "train.microbatch=1"},
                   12},
        UnevenCase{"rounded_inputs_of_parts",
                   2,
                   {"experts.count=2", "experts.active=1", "experts.width=24",
                    "quantization.weights=int8", "quantization.activations=dynamic-int8"},
                   {"parallel.expert_exchange=all_gather", "parallel.expert_rows=1"}},
        UnevenCase{"rounded_inputs_of_all_rows",
                   2,
                   {"experts.count=2", "experts.active=1", "experts.width=24",
                    "quantization.weights=int8", "quantization.activations=dynamic-int8"},
                   {"parallel.expert_exchange=all_to_all"}}),
    [](const auto& given) { return std::string(given.param.what); });

INSTANTIATE_TEST_SUITE_P(
    Models, ExpertsParity,
    testing::Values(Choices{"experts.count=4", "experts.width=24", "experts.balance_weight=0.5",
                            "experts.z_weight=0.1"},
                    Choices{"experts.count=6", "experts.active=3", "experts.width=12",
                            "experts.shared=2", "experts.first_dense=1", "experts.score=sigmoid",
                            "experts.scale=1.5", "experts.groups=3", "experts.group_active=2",
                            "experts.bias_rate=0.01", "experts.balance_weight=0.3"},
                    Choices{"experts.count=4", "experts.width=24", "train.trainable=[router]"},
                    Choices{"experts.count=4", "experts.active=1", "experts.normalize=false",
                            "experts.width=24", "experts.every=2", "optimizer.name=muon"},
                    Choices{"experts.count=4", "experts.width=24", "experts.shared=1",
                            "experts.first_dense=1", "quantization.weights=int8"},
                    Choices{"experts.count=4", "experts.width=24", "adapter.rank=2",
                            "adapter.targets=[attention.query,attention.value]",
                            "model.frozen_format=int8"},
                    Choices{"experts.count=4", "experts.width=24", "experts.shared=1",
                            "experts.first_dense=1", "adapter.rank=2"},
                    Choices{"experts.count=6", "experts.active=3", "experts.width=12",
                            "experts.balance_weight=0.3", "adapter.rank=3",
                            "adapter.targets=[mlp.up,mlp.down]", "model.frozen_format=int8"}));

}  // namespace
}  // namespace hyperslab
