// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/executor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "hyperslab/core/error.hpp"
#include "pipeline/arithmetic_worker.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::test {
namespace {

using pipeline::Executor;
using pipeline::make_program;
using pipeline::Program;
using pipeline::Schedule;

constexpr Dim kSmall = 7;
constexpr Dim kLarge = 20011;  ///< beyond the eager limits of MPI libraries

/// Lets ranks drift apart, differently in every pass.
class Jittery final : public ArithmeticWorker {
 public:
  Jittery(const Program& program, int rank, Dim n)
      : ArithmeticWorker(program, rank, n, true), state_(static_cast<unsigned>(rank + 1)) {}

 private:
  void pause() override {
    state_ = state_ * 1664525U + 1013904223U;
    std::this_thread::sleep_for(std::chrono::microseconds(state_ >> 22U));
  }
  unsigned state_;
};

void expect_sums(const Program& program, const ArithmeticWorker& worker, Dim n, int runs) {
  const int rank = world().rank();
  for (int chunk = 0; chunk < program.virtual_stages; ++chunk) {
    Expected sums = expected(program, program.global_stage(rank, chunk), n);
    for (double& x : sums.outputs) x *= runs;
    for (double& x : sums.weight_gradients) x *= runs;
    EXPECT_EQ(worker.outputs(chunk), sums.outputs)
        << pipeline::name_of(program.schedule) << " v " << program.virtual_stages << " m "
        << program.microbatches << " chunk " << chunk;
    if (program.schedule == Schedule::forward_only) continue;
    EXPECT_EQ(worker.weight_gradients(chunk), sums.weight_gradients)
        << pipeline::name_of(program.schedule) << " v " << program.virtual_stages << " m "
        << program.microbatches << " chunk " << chunk;
  }
}

/// Every schedule that is legal for the started ranks.
std::vector<Program> programs() {
  std::vector<Program> all;
  const int p = world().size();
  for (int m = 1; m <= 9; ++m) {
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_forward_one_backward,
                                    Schedule::zero_bubble, Schedule::forward_only}) {
      all.push_back(make_program(schedule, p, 1, m));
    }
    for (int v = 2; v <= 3 && p > 1; ++v) {
      all.push_back(make_program(Schedule::forward_only, p, v, m));
      if (m % p == 0) all.push_back(make_program(Schedule::interleaved, p, v, m));
    }
  }
  return all;
}

TEST(Executor, GivesTheSumsOfEverySchedule) {
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  Context ctx(Device::cpu);
  for (const Program& program : programs()) {
    for (const bool shared : {false, true}) {
      ArithmeticWorker worker(program, world().rank(), kSmall, shared);
      Executor executor(program, world().rank(), group.get());

      for (int run = 0; run < 3; ++run) executor.run(ctx, worker);
      executor.finish(ctx);

      expect_sums(program, worker, kSmall, 3);
    }
  }
}

TEST(Executor, GivesTheSumsWithLargeMessagesAndRanksThatDrift) {
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  Context ctx(Device::cpu);
  for (const Program& program : programs()) {
    if (program.microbatches < 8) continue;
    Jittery worker(program, world().rank(), kLarge);
    Executor executor(program, world().rank(), group.get());

    executor.run(ctx, worker);
    executor.run(ctx, worker);
    executor.finish(ctx);

    expect_sums(program, worker, kLarge, 2);
  }
}

TEST(Executor, MayFollowAnother) {
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  Context ctx(Device::cpu);
  const Program training = make_program(Schedule::one_forward_one_backward, world().size(), 1, 6);
  const Program evaluation = make_program(Schedule::forward_only, world().size(), 1, 3);
  ArithmeticWorker trained(training, world().rank(), kLarge, true);
  ArithmeticWorker evaluated(evaluation, world().rank(), kLarge, true);
  Executor train(training, world().rank(), group.get());
  Executor evaluate(evaluation, world().rank(), group.get());

  for (int i = 0; i < 2; ++i) {
    train.run(ctx, trained);
    train.finish(ctx);
    evaluate.run(ctx, evaluated);
    evaluate.finish(ctx);
  }

  expect_sums(training, trained, kLarge, 2);
  expect_sums(evaluation, evaluated, kLarge, 2);
}

TEST(Executor, ManyMoreExchangesThanMayBeUnderWay) {
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  Context ctx(Device::cpu);
  const Program program = make_program(Schedule::gpipe, world().size(), 1, 1200);
  ArithmeticWorker worker(program, world().rank(), 1, true);
  Executor executor(program, world().rank(), group.get());

  executor.run(ctx, worker);
  executor.finish(ctx);

  expect_sums(program, worker, 1, 1);
}

TEST(Executor, ChargesWaitsToThePipeline) {
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  Context ctx(Device::cpu);
  const Program program = make_program(Schedule::gpipe, world().size(), 1, 2);
  Jittery worker(program, world().rank(), kSmall);
  Executor executor(program, world().rank(), group.get());

  ctx.recorder().begin_step(1, false);
  executor.run(ctx, worker);
  executor.finish(ctx);
  const StepTimes& times = ctx.recorder().end_step();

  if (world().size() > 1) {
    EXPECT_GT(times.phase(Phase::pipeline_idle), 0);
    EXPECT_GT(times.phase(Phase::pipeline_comm), 0);
  } else {
    EXPECT_EQ(times.phase(Phase::pipeline_idle), 0);
    EXPECT_EQ(times.phase(Phase::pipeline_comm), 0);
  }
  EXPECT_EQ(ctx.recorder().phase(), Phase::other);
}

TEST(Executor, RunsAloneWithoutAGroup) {
  Context ctx(Device::cpu);
  const Program program = make_program(Schedule::zero_bubble, 1, 1, 5);
  ArithmeticWorker worker(program, 0, kSmall, false);

  Executor(program, 0, nullptr).run(ctx, worker);

  const Expected sums = expected(program, 0, kSmall);
  EXPECT_EQ(worker.weight_gradients(0), sums.weight_gradients);
}

TEST(Executor, RefusesAGroupThatIsNotOfTheProgram) {
  const auto group = comm::make_meta_communicator(comm::GroupRole::pipeline, 1, 3);
  const Program program = make_program(Schedule::gpipe, 3, 1, 2);

  EXPECT_THROW(Executor(program, 0, group.get()), Error);
  EXPECT_THROW(Executor(program, 0, nullptr), Error);
  EXPECT_THROW(Executor(make_program(Schedule::gpipe, 4, 1, 2), 1, group.get()), Error);
}

/// Counts passes and computes nothing.
class MetaWorker final : public pipeline::Worker {
 public:
  void forward(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { ++passes; }
  void backward(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { ++passes; }
  void backward_input(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { ++passes; }
  void backward_weight(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { ++passes; }
  View input(int /*chunk*/, int /*slot*/) override { return view(); }
  CView output(int /*chunk*/, int /*slot*/) override { return view(); }
  View output_gradient(int /*chunk*/, int /*slot*/) override { return view(); }
  CView input_gradient(int /*chunk*/, int /*slot*/) override { return view(); }
  int passes = 0;

 private:
  static View view() { return {nullptr, DType::f32, Device::meta, {25}}; }
};

TEST(Executor, CountsTrafficOnMeta) {
  const auto group = comm::make_meta_communicator(comm::GroupRole::pipeline, 1, 4);
  Context ctx(Device::meta);
  const Program program = make_program(Schedule::interleaved, 4, 2, 8);
  MetaWorker worker;
  Executor executor(program, 1, group.get());

  executor.run(ctx, worker);
  executor.finish(ctx);

  EXPECT_EQ(worker.passes, 2 * 2 * 8);
  const auto bytes = [&](comm::Call call) {
    return group->traffic().bytes[static_cast<std::size_t>(call)];
  };
  EXPECT_EQ(bytes(comm::Call::send), 4 * 8 * 100);
  EXPECT_EQ(bytes(comm::Call::recv), 4 * 8 * 100);
}

}  // namespace
}  // namespace hyperslab::test
