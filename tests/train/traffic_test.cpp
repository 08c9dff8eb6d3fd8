// SPDX-License-Identifier: Apache-2.0
// Calls and bytes of a step: by hand, as MPI saw them, as the communicators counted them, and as
// the plan on `meta` predicts them for every rank.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "comm/pmpi_counter.hpp"
#include "hyperslab/train/trainer.hpp"
#include "support/mpi_world.hpp"
#include "train/closed_forms.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using comm::Call;
using test::Flows;
using test::Numbers;
using test::world;

constexpr int kSteps = 2;

// clang-format off
const std::vector<Numbers> kDecks = {
    // Two ranks.
    {.tensor = 2},
    {.tensor = 2, .sequence = true, .gpt2 = false, .tied = false},
    {.pipeline = 2, .layers = {1, 2}, .microbatches = 4},
    {.data = 2, .zero = 2, .microbatches = 3},
    {.data = 2, .zero = 3, .microbatches = 3},
    {.data = 2, .zero = 3, .gpt2 = false, .tied = false, .tiny_buckets = false},
    {.microbatches = 3, .context = 2},
    {.zero = 2, .gpt2 = false, .kv_heads = 2, .microbatches = 2, .context = 2},
    {.zero = 3, .tied = false, .recompute = "full", .context = 2},
    // Four: one axis.
    {.tensor = 4, .microbatches = 2},
    {.tensor = 4, .sequence = true, .kv_heads = 2, .microbatches = 2},
    {.tensor = 4, .gpt2 = false, .kv_heads = 1, .microbatches = 3, .recompute = "full"},
    {.tensor = 4, .sequence = true, .tied = false, .microbatches = 2, .recompute = "full"},
    {.tensor = 4, .microbatches = 2, .recompute = "selective"},
    {.tensor = 4, .microbatches = 2, .recompute = "full", .mlp_pieces = 4},
    {.tensor = 4, .sequence = true, .gpt2 = false, .recompute = "full", .mlp_pieces = 2},
    {.pipeline = 4, .layers = {0, 1, 2, 1}, .microbatches = 7},
    {.pipeline = 4, .layers = {1, 1, 1, 1}, .schedule = "gpipe", .gpt2 = false, .tied = false,
     .microbatches = 3},
    {.pipeline = 4, .layers = {1, 1, 1, 1}, .schedule = "zero_bubble", .microbatches = 5},
    {.data = 4, .tied = false, .microbatches = 2},
    {.data = 4, .zero = 1, .microbatches = 2, .tiny_buckets = false},
    {.data = 4, .zero = 2, .gpt2 = false, .tied = false, .microbatches = 3},
    {.data = 4, .zero = 3, .gpt2 = false, .tied = false, .microbatches = 2, .recompute = "full"},
    {.data = 4, .zero = 1, .shard = 2, .microbatches = 2},
    {.data = 4, .zero = 2, .shard = 2, .tied = false, .microbatches = 3},
    {.data = 4, .zero = 3, .shard = 2, .gpt2 = false, .microbatches = 2},
    // Four: two axes.
    {.data = 2, .tensor = 2, .sequence = true, .zero = 1, .microbatches = 2},
    {.data = 2, .tensor = 2, .sequence = true, .zero = 2, .kv_heads = 1, .microbatches = 3},
    {.data = 2, .tensor = 2, .sequence = true, .zero = 3, .microbatches = 2},
    {.data = 2, .pipeline = 2, .layers = {2, 1}, .zero = 1, .microbatches = 4},
    {.data = 2, .pipeline = 2, .layers = {2, 1}, .zero = 2, .microbatches = 4},
    {.data = 2, .pipeline = 2, .layers = {1, 2}, .zero = 3, .tied = false, .microbatches = 3},
    {.pipeline = 2, .tensor = 2, .layers = {1, 2}, .sequence = true, .schedule = "zero_bubble",
     .microbatches = 3},
    {.pipeline = 2, .tensor = 2, .layers = {0, 1, 2, 1}, .schedule = "interleaved",
     .microbatches = 4},
    {.pipeline = 2, .tensor = 2, .layers = {0, 1, 1, 1, 1, 0}, .sequence = true,
     .schedule = "interleaved", .gpt2 = false, .kv_heads = 1, .microbatches = 2},
    {.zero = 1, .microbatches = 2, .context = 4},
    {.data = 2, .zero = 2, .shard = 1, .gpt2 = false, .microbatches = 2, .context = 2},
    {.data = 2, .zero = 3, .tied = false, .microbatches = 2, .recompute = "full", .context = 2},
    {.tensor = 2, .sequence = true, .microbatches = 2, .recompute = "full", .context = 2},
    {.pipeline = 2, .layers = {1, 2}, .schedule = "zero_bubble", .microbatches = 3, .context = 2},
    // 512 x 20000 logits of a rank are more than 32 MiB, and so two chunks.
    {.data = 2, .tensor = 2, .layers = {1}, .sequence = true, .B = 32, .T = 16, .C = 8, .V = 39999,
     .head_chunks = 2},
    // Eight: all axes.
    {.data = 4, .tensor = 2, .sequence = true, .zero = 3, .shard = 2, .microbatches = 2},
    {.data = 4, .pipeline = 2, .layers = {1, 2}, .zero = 2, .shard = 2, .microbatches = 3},
    {.data = 4, .zero = 3, .shard = 2, .microbatches = 2, .context = 2},
    {.data = 2, .pipeline = 2, .layers = {2, 1}, .zero = 1, .microbatches = 4, .context = 2},
    {.pipeline = 2, .tensor = 2, .layers = {1, 2}, .sequence = true, .microbatches = 3,
     .context = 2},
    {.data = 2, .pipeline = 2, .tensor = 2, .layers = {1, 2}, .zero = 1, .microbatches = 4},
    {.data = 2, .pipeline = 2, .tensor = 2, .layers = {2, 1}, .sequence = true, .zero = 1,
     .kv_heads = 1, .microbatches = 5, .recompute = "full"},
    {.data = 2, .pipeline = 2, .tensor = 2, .layers = {1, 1, 1, 1}, .sequence = true,
     .schedule = "interleaved", .zero = 1, .microbatches = 6, .tiny_buckets = false},
    {.pipeline = 2, .tensor = 4, .layers = {2, 1}, .sequence = true, .schedule = "zero_bubble",
     .kv_heads = 2, .microbatches = 7},
    {.data = 2, .tensor = 4, .sequence = true, .zero = 2, .gpt2 = false, .kv_heads = 2,
     .microbatches = 2},
    {.pipeline = 8, .layers = {0, 1, 1, 1, 1, 1, 1, 0}, .microbatches = 9},
};
// clang-format on

/// Those for the ranks that were started.
std::vector<Numbers> decks() {
  std::vector<Numbers> out;
  for (const Numbers& deck : kDecks) {
    if (deck.ranks() == world().size()) out.push_back(deck);
  }
  return out;
}

void expect_equal(const comm::Traffic& found, const Flows& expected, std::int64_t times,
                  const std::string& what) {
  const std::array<std::pair<Call, test::Flow>, 8> all = {
      {{Call::all_reduce, expected.all_reduce},
       {Call::reduce_scatter, expected.reduce_scatter},
       {Call::all_gather, expected.all_gather},
       {Call::all_to_all, expected.all_to_all},
       {Call::send, expected.send},
       {Call::recv, expected.recv},
       {Call::broadcast, {}},
       {Call::barrier, {}}}};
  for (const auto& [call, flow] : all) {
    const auto i = static_cast<std::size_t>(call);
    EXPECT_EQ(found.calls[i], times * flow.calls) << what << " calls of " << name_of(call);
    EXPECT_EQ(found.bytes[i], times * flow.bytes) << what << " bytes of " << name_of(call);
  }
}

/// Members announce that they wait for gradients: once a step in the data group, with zero 2 and 3
/// also before a buffer is used again, and for each sum of a tied table. No data moves, and
/// communicators do not count it.
void expect_arrivals(std::int64_t seen, const Numbers& numbers, const std::string& group,
                     const Flows& flows) {
  std::int64_t least = 0;
  std::int64_t most = 0;
  if (group == "data" && numbers.data * numbers.context > 1) {
    least = 1;
    most = numbers.zero >= 2 ? 1 + flows.reduce_scatter.calls : 1;
  } else if (group == "tied") {
    least = most = flows.all_reduce.calls;
  }
  EXPECT_GE(seen, kSteps * least) << group;
  EXPECT_LE(seen, kSteps * most) << group;
}

/// Steps of one deck on the ranks that were started.
void check_steps(const Numbers& numbers) {
  const train::Config config = test::small_config(numbers.overrides(), world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  test::SmallRun run(config, mesh, world().rank());
  test::pmpi::clear();
  std::map<std::string, comm::Traffic> before;  // setup gathers tables that zero 3 keeps present
  for (const comm::Communicator* group : mesh.groups()) before[group->name()] = group->traffic();
  for (int step = 1; step <= kSteps; ++step) run.step(step);

  const auto expected = test::flows(numbers, mesh.at(mesh::Axis::pipeline));
  for (const auto& [group, flows] : expected) {
    comm::Traffic seen = test::pmpi::traffic(group);
    auto& arrivals = seen.calls[static_cast<std::size_t>(Call::barrier)];
    const std::string sums = group == "data" && numbers.fold() < numbers.data ? "shard" : group;
    expect_arrivals(std::exchange(arrivals, 0), numbers, group, expected.at(sums));
    expect_equal(seen, flows, kSteps, "MPI, " + group);
  }
  for (const std::string& name : test::pmpi::communicators()) {
    EXPECT_TRUE(expected.contains(name)) << name;
  }
  for (const comm::Communicator* group : mesh.groups()) {
    comm::Traffic counted = group->traffic();
    for (std::size_t i = 0; i < counted.calls.size(); ++i) {
      counted.calls[i] -= before[group->name()].calls[i];
      counted.bytes[i] -= before[group->name()].bytes[i];
    }
    expect_equal(counted, expected.at(group->name()), kSteps, "counted, " + group->name());
  }
}

TEST(StepTraffic, EqualsTheClosedForm) {
  ASSERT_FALSE(decks().empty());
  for (const Numbers& numbers : decks()) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(numbers.overrides(), " ")));
    check_steps(numbers);
  }
}

TEST(StepTraffic, IsPredictedForEveryRank) {
  if (world().rank() != 0) return;
  for (const Numbers& numbers : decks()) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(numbers.overrides(), " ")));
    const train::Config config = test::small_config(numbers.overrides(), world().size());
    for (int rank = 0; rank < numbers.ranks(); ++rank) {
      const int stage = rank / (numbers.tensor * numbers.context) % numbers.pipeline;
      const plan::Plan plan = plan::make_plan(config, {}, rank);
      const auto expected = test::flows(numbers, stage);
      for (const auto& [group, traffic] : plan.traffic) {
        const std::string name(name_of(group));
        expect_equal(traffic, expected.at(name), 1, fmt::format("rank {}, {}", rank, name));
      }
      EXPECT_EQ(plan.traffic.contains(comm::GroupRole::tied),
                expected.at("tied").all_reduce.calls > 0);
      EXPECT_EQ(plan.traffic.contains(comm::GroupRole::key_value),
                numbers.tensor > numbers.kv_heads);
    }
  }
}

}  // namespace
}  // namespace hyperslab
