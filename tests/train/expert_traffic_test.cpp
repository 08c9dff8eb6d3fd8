// SPDX-License-Identifier: Apache-2.0
// Calls and bytes of the ranks that exchange rows of experts, against a closed form.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hyperslab/mesh/mesh.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::world;

/// A small deck: 2 layers with experts of 3, samples of T tokens, in fp32.
struct Exchange {
  static constexpr std::int64_t kB = 2;
  static constexpr std::int64_t kT = 12;
  static constexpr std::int64_t kC = 24;
  static constexpr std::int64_t kExperts = 4;
  static constexpr std::int64_t kActive = 2;
  static constexpr std::int64_t kLayers = 2;  ///< with experts
  static constexpr int kSteps = 2;
  std::vector<std::string> layout;
  std::int64_t microbatches = 1;
  int forwards = 1;  ///< forward passes of a microbatch
  int context = 1;   ///< ranks that share a sample
  int tensor = 1;
};

std::vector<std::string> overrides_of(const Exchange& exchange) {
  const std::int64_t data = world().size() / exchange.context / exchange.tensor;
  std::vector<std::string> all = {
      "model.bias=false",
      fmt::format("experts.count={}", Exchange::kExperts),
      "experts.first_dense=1",
      "experts.width=16",
      fmt::format("parallel.data={}", data),
      fmt::format("train.microbatch={}", Exchange::kB),
      fmt::format("train.global_batch={}", Exchange::kB * exchange.microbatches * data)};
  all.insert(all.end(), exchange.layout.begin(), exchange.layout.end());
  return all;
}

/// Bytes that all ranks send in a step. Rows leave and come back once in a forward pass; backward
/// brings gradients of outputs, inputs and gradients of inputs. A weight travels with each, and
/// counts of rows go ahead.
std::int64_t bytes_of_all(const Exchange& exchange) {
  const std::int64_t rows = Exchange::kB * Exchange::kT / exchange.context * Exchange::kActive;
  const std::int64_t forward = 2 * rows * Exchange::kC + rows + Exchange::kExperts;
  const std::int64_t backward = 3 * rows * Exchange::kC + rows;
  return 4 * world().size() * exchange.microbatches * Exchange::kLayers *
         (exchange.forwards * forward + backward);
}

std::vector<Exchange> exchanges() {
  if (world().size() == 2) {
    return {{.layout = {"parallel.expert=2"}, .microbatches = 3},
            {.layout = {"parallel.expert=2", "parallel.zero=3", "memory.recompute=full"},
             .microbatches = 2,
             .forwards = 2}};
  }
  return {{.layout = {"parallel.expert=2", "parallel.zero=2"}, .microbatches = 2},
          {.layout = {"parallel.expert=4"}},
          {.layout = {"parallel.expert=2", "parallel.context=2"}, .microbatches = 2, .context = 2},
          {.layout = {"parallel.expert=2", "parallel.tensor=2", "parallel.sequence=true"},
           .tensor = 2}};
}

/// Calls, and the bytes of all ranks, of some calls of the expert group in a step.
struct Expected {
  comm::Call call;
  std::int64_t calls;
  std::int64_t bytes_of_all;
};

/// Runs the deck, and compares what was counted, and what is planned, with the closed form.
void expect_traffic(const Exchange& exchange, const std::vector<Expected>& expected) {
  const train::Config config = test::small_config(overrides_of(exchange), world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  test::SmallRun run(config, mesh, world().rank());
  for (int step = 1; step <= Exchange::kSteps; ++step) run.step(step);
  ASSERT_NE(mesh.expert_group(), nullptr);
  const comm::Traffic& counted = mesh.expert_group()->traffic();
  const plan::Plan plan = plan::make_plan(config, {}, world().rank());
  const comm::Traffic& planned = plan.traffic.at(comm::GroupRole::expert);
  for (const Expected& each : expected) {
    const auto call = static_cast<std::size_t>(each.call);
    EXPECT_EQ(counted.calls[call], Exchange::kSteps * each.calls);
    EXPECT_EQ(world().sum(static_cast<double>(counted.bytes[call])),
              static_cast<double>(Exchange::kSteps * each.bytes_of_all));
    EXPECT_EQ(planned.calls[call], each.calls);
    EXPECT_EQ(planned.bytes[call] * world().size(), each.bytes_of_all);
  }
}

TEST(ExpertTraffic, EqualsTheClosedFormAndThePlan) {
  for (const Exchange& exchange : exchanges()) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(exchange.layout, " ")));
    const std::int64_t calls =
        exchange.microbatches * Exchange::kLayers * (4 * exchange.forwards + 4);
    expect_traffic(exchange, {{comm::Call::all_to_all, calls, bytes_of_all(exchange)}});
  }
}

/// The whole side of a collective of every rank counts. Tokens of all ranks come, with their
/// experts and weights, and sums go back.
TEST(ExpertTraffic, OfGatheredTokensEqualsTheClosedFormAndThePlan) {
  for (Exchange exchange : exchanges()) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(exchange.layout, " ")));
    const std::int64_t members = exchange.layout.front() == "parallel.expert=4" ? 4 : 2;
    exchange.layout.emplace_back("parallel.expert_exchange=all_gather");
    const std::int64_t passes = exchange.microbatches * Exchange::kLayers;
    const std::int64_t tokens = Exchange::kB * Exchange::kT / exchange.context * Exchange::kC;
    const std::int64_t pairs = Exchange::kB * Exchange::kT / exchange.context * Exchange::kActive;
    const std::int64_t bytes = 4 * members * world().size() * passes;
    const int forwards = exchange.forwards;
    expect_traffic(exchange, {{comm::Call::all_gather, passes * (3 * forwards + 2),
                               bytes * (forwards * (tokens + 2 * pairs) + 2 * tokens)},
                              {comm::Call::reduce_scatter, passes * (forwards + 2),
                               bytes * (forwards * tokens + tokens + pairs)}});
  }
}

}  // namespace
}  // namespace hyperslab
