// SPDX-License-Identifier: Apache-2.0
// Members that meet without data, so that waiting for a slow one is told apart from collectives.
#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <thread>

#include "comm/comm_test.hpp"

namespace hyperslab::test {
namespace {

TEST(Arrive, AMemberThatIsLateIsSeenWhereItComes) {
  const auto comm = world().communicator(Device::cpu, comm::GroupRole::data);
  Context ctx(Device::cpu);
  ctx.recorder().begin_step(1, false);
  std::array<double, 3> waits{};
  for (double& seconds : waits) {
    world().barrier();
    if (comm->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const double begin = now_seconds();
    const comm::Ticket ticket = comm->arrive(ctx);
    seconds = comm->wait(ctx, ticket) - begin;
  }

  if (comm->rank() == 1) {
    EXPECT_LT(std::ranges::min(waits), 0.1);
  } else {
    EXPECT_GT(std::ranges::max(waits), 0.15);
  }
  const comm::Traffic& traffic = comm->traffic();
  EXPECT_EQ(std::accumulate(traffic.calls.begin(), traffic.calls.end(), std::int64_t{0}), 0);
  EXPECT_EQ(ctx.recorder().end_step().reduce_seconds, 0);
}

}  // namespace
}  // namespace hyperslab::test
