// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pipeline/arithmetic_worker.hpp"
#include "support/allocations.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::test {
namespace {

using pipeline::Schedule;

TEST(Allocation, NoneAfterTheFirstRun) {
  Context ctx(Device::cpu);
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  for (const Schedule schedule :
       {Schedule::gpipe, Schedule::interleaved, Schedule::zero_bubble, Schedule::forward_only}) {
    const int chunks = schedule == Schedule::interleaved ? 2 : 1;
    const auto program = pipeline::make_program(schedule, world().size(), chunks, 8);
    ArithmeticWorker worker(program, world().rank(), 1000, true);
    pipeline::Executor executor(program, world().rank(), group.get());
    executor.run(ctx, worker);
    const std::int64_t before = allocations();

    for (int run = 0; run < 50; ++run) executor.run(ctx, worker);
    executor.finish(ctx);
    const std::int64_t after = allocations();

    EXPECT_GT(before, 0);
    EXPECT_EQ(after - before, 0) << pipeline::name_of(schedule);
  }
}

}  // namespace
}  // namespace hyperslab::test
