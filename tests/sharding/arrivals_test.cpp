// SPDX-License-Identifier: Apache-2.0
// How much of the time of reductions was waiting for a late member.
#include "hyperslab/sharding/arrivals.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/mpi_world.hpp"

namespace hyperslab {
namespace {

using test::world;

TEST(Arrivals, LateMembersAreSeenAtEachOfManyPoints) {
  constexpr int kPoints = 1500;  // with their reductions thrice as many as may be in progress
  const auto comm = world().communicator(Device::cpu, comm::GroupRole::data);
  Context ctx(Device::cpu);
  ctx.recorder().begin_step(1, false);
  sharding::Arrivals arrivals;
  Tensor value(Device::cpu, DType::f32, {1});
  for (int i = 0; i < kPoints; ++i) {
    const bool late = i == 20 || i == 700 || i == kPoints - 1;
    if (late && comm->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto point = arrivals.arrive(ctx, *comm);
    const comm::Ticket ticket = comm->all_reduce(ctx, value.view(), comm::ReduceOp::max);
    const double begin = now_seconds();
    comm->wait(ctx, ticket);
    arrivals.waited(point, begin, now_seconds());
  }

  const double late = arrivals.take_late_seconds(ctx);

  if (comm->rank() == 0) {
    EXPECT_GT(late, 0.5);
  }
  EXPECT_EQ(arrivals.take_late_seconds(ctx), 0);
}

}  // namespace
}  // namespace hyperslab
