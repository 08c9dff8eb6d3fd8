// SPDX-License-Identifier: Apache-2.0
// Gradients are reduced under the backward pass, and what the groups moved is counted.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "hyperslab/ops/elementwise.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::small_config;
using test::SmallRun;
using test::world;

/// Buckets of some MiB, and a backward pass about as long as they take.
train::Config large_buckets() {
  return small_config(
      {"parallel.data=" + std::to_string(world().size()), "model.layers=6", "model.width=320",
       "model.heads=5", "model.context=64", "train.global_batch=4", "parallel.bucket_mib=2"},
      world().size());
}

TEST(Overlap, AtMostHalfOfTheReductionsIsExposed) {
  constexpr int kWarmUp = 2;
  constexpr int kSteps = 10;
  const train::Config config = large_buckets();
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());
  double exposed = 0;
  double summed = 0;
  double busy = 0;
  for (int step = 1; step <= kWarmUp + kSteps; ++step) {
    run.step(step);
    if (step <= kWarmUp) continue;
    const StepTimes times = run.trainer().inspection().times(step);
    EXPECT_LE(times.reduce_busy_seconds, times.reduce_seconds * (1 + 1e-9));
    EXPECT_LE(times.reduce_busy_seconds, times.step_seconds);
    EXPECT_LE(times.phase(Phase::reduce_exposed), times.reduce_busy_seconds * (1 + 1e-9));
    EXPECT_LE(times.reduce_seconds,
              run.trainer().inspection().traffic(step)[0].seconds * (1 + 1e-9));
    exposed += times.phase(Phase::reduce_exposed);
    summed += times.reduce_seconds;
    busy += times.reduce_busy_seconds;
  }
  // Of all ranks: a rank that another process holds up lets the others wait.
  exposed = world().sum(exposed);
  summed = world().sum(summed);
  busy = world().sum(busy);
  if (world().rank() == 0) {
    std::printf("exposed %.1f ms, reductions %.1f ms, with one in progress %.1f ms\n",
                1e3 * exposed, 1e3 * summed, 1e3 * busy);
  }
  EXPECT_GT(busy, 0);
  EXPECT_LE(exposed, 0.5 * summed);
}

TEST(Overlap, EveryStepCountsWhatThePlanFound) {
  for (const char* zero : {"parallel.zero=0", "parallel.zero=1", "parallel.zero=2"}) {
    const train::Config config =
        small_config({"parallel.data=" + std::to_string(world().size()), zero,
                      "parallel.bucket_mib=0.02", "train.microbatch=1"},
                     world().size());
    const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
    SmallRun run(config, mesh, world().rank());
    const comm::Traffic& plan = run.plan().traffic.at(comm::GroupRole::data);
    const auto calls = std::accumulate(plan.calls.begin(), plan.calls.end(), std::int64_t{0});
    const auto bytes = std::accumulate(plan.bytes.begin(), plan.bytes.end(), std::int64_t{0});
    double exposed = 0;
    double waited = 0;
    for (int step = 1; step <= 5; ++step) {
      run.step(step);
      const io::GroupTraffics& traffic = run.trainer().inspection().traffic(step);
      EXPECT_EQ(traffic[0].calls, calls) << zero;
      EXPECT_EQ(traffic[0].bytes, bytes) << zero;
      EXPECT_GT(traffic[0].seconds, 0) << zero;
      const StepTimes times = run.trainer().inspection().times(step);
      exposed += times.phase(Phase::reduce_exposed) + times.phase(Phase::wait);
      waited += traffic[0].exposed_seconds;
    }
    // Of the waits for the data group only those for gathered parameters are in other phases.
    EXPECT_GE(exposed, 0.5 * waited) << zero;
    const std::vector<io::GroupInfo> groups = run.trainer().inspection().groups();
    ASSERT_EQ(groups.front().role, comm::GroupRole::data);
    ASSERT_EQ(groups.back().role, comm::GroupRole::world);
    EXPECT_EQ(groups.front().size, world().size());
    EXPECT_EQ(run.trainer().inspection().traffic(5)[groups.size() - 1].calls, 1);
  }
}

TEST(Overlap, WhatIsUnderWayEndsWhileOpsRun) {
  const auto comm = world().communicator(Device::cpu, comm::GroupRole::data);
  Context ctx(Device::cpu);
  ctx.recorder().begin_step(1, false);
  ctx.set_background(comm.get());
  Tensor large(Device::cpu, DType::f32, {1 << 20});
  ops::fill(ctx, 1, large.view());
  Tensor small(Device::cpu, DType::f32, {1 << 10});

  const comm::Ticket ticket = comm->all_reduce(ctx, large.view(), comm::ReduceOp::sum);
  const double ops_end = now_seconds() + 1;
  while (now_seconds() < ops_end) ops::fill(ctx, 1, small.view());
  comm->wait(ctx, ticket);

  EXPECT_LT(ctx.recorder().end_step().reduce_seconds, 0.9);
  EXPECT_EQ(large.view().data<float>()[0], static_cast<float>(world().size()));
}

}  // namespace
}  // namespace hyperslab
