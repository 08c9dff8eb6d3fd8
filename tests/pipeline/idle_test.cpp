// SPDX-License-Identifier: Apache-2.0
// The bubble of real ranks: passes are sleeps, which need no cores.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <thread>

#include "hyperslab/pipeline/executor.hpp"
#include "hyperslab/pipeline/validate.hpp"
#include "support/mpi_world.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using pipeline::Schedule;

constexpr double kTolerance = 0.10;  ///< of the ideal idle fraction
constexpr int kMicrobatches = 16;
constexpr int kRuns = 5;            ///< at most
constexpr double kForward = 0.020;  ///< seconds of one stage
constexpr double kBackward = 0.040;

/// Sleeps, and says how long.
class Sleeper final : public pipeline::Worker {
 public:
  Sleeper(int chunks, double forward, double input, double weight)
      : forward_(forward / chunks), input_(input / chunks), weight_(weight / chunks) {}
  void forward(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { sleep(forward_); }
  void backward(int /*chunk*/, int /*slot*/, int /*microbatch*/) override {
    sleep(input_ + weight_);
  }
  void backward_input(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { sleep(input_); }
  void backward_weight(int /*chunk*/, int /*slot*/, int /*microbatch*/) override { sleep(weight_); }
  View input(int chunk, int slot) override { return buffer(chunk, slot, 0); }
  CView output(int chunk, int slot) override { return buffer(chunk, slot, 1); }
  View output_gradient(int chunk, int slot) override { return buffer(chunk, slot, 2); }
  CView input_gradient(int chunk, int slot) override { return buffer(chunk, slot, 2); }
  [[nodiscard]] double busy() const { return busy_; }

 private:
  void sleep(double seconds) {
    const double begin = now_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    busy_ += now_seconds() - begin;
  }
  View buffer(int chunk, int slot, int which) {
    return buffers_.view().slice((Dim{chunk} * kMicrobatches + slot) * 3 + which, 1);
  }
  double busy_ = 0;
  double forward_;
  double input_;
  double weight_;
  Tensor buffers_ = filled_tensor(DType::f32, {Dim{2} * kMicrobatches * 3, 64}, 0);
};

/// Mean seconds of all ranks in one run.
struct Seconds {
  double wall = 0;
  double busy = 0;
};

Seconds run(comm::Communicator& group, const pipeline::Program& program) {
  const bool split = program.schedule == Schedule::zero_bubble;
  const double part = split ? kForward : kBackward / 2;
  Sleeper worker(program.virtual_stages, kForward, part, part);
  pipeline::Executor executor(program, group.rank(), &group);
  Context ctx(Device::cpu);
  world().barrier();
  const double begin = now_seconds();
  executor.run(ctx, worker);
  executor.finish(ctx);
  world().barrier();
  const double ranks = group.size();
  const double wall = world().sum(now_seconds() - begin) / ranks;
  return {wall, world().sum(worker.busy()) / ranks};
}

/// How late a rank goes on after a message: one microbatch passes through all ranks, one by one.
double lateness(comm::Communicator& group) {
  const int p = group.size();
  const Seconds alone = run(group, pipeline::make_program(Schedule::gpipe, p, 1, 1));
  return (alone.wall - p * alone.busy) / (2 * p);
}

class Idle : public testing::TestWithParam<Schedule> {};

TEST_P(Idle, IsTheIdealBubble) {
  const auto group = world().communicator(Device::cpu, comm::GroupRole::pipeline);
  const int p = world().size();
  const int v = GetParam() == Schedule::interleaved ? 2 : 1;
  const double ideal = pipeline::ideal_idle_fraction(GetParam(), p, v, kMicrobatches);
  const pipeline::Program program = pipeline::make_program(GetParam(), p, v, kMicrobatches);
  const int passes = (GetParam() == Schedule::zero_bubble ? 3 : 2) * v * kMicrobatches + 2 * p;

  // Other work on the machine only adds idle time, a fault of the program adds it to every run.
  double least = std::numeric_limits<double>::infinity();
  std::string runs;
  for (int i = 0; i < kRuns && least > (1 + kTolerance) * ideal; ++i) {
    const double late = lateness(*group);
    const auto [wall, busy] = run(*group, program);
    const double idle = (wall - busy) / busy;
    const double noise = 2 * late * passes / busy;  // ranks wait for the latest of two neighbours
    least = std::min(least, idle - std::clamp(noise, 0.0, 0.5 * ideal));
    EXPECT_GT(idle, (1 - kTolerance) * ideal);
    runs += fmt::format(" {:.4f} (noise {:.4f})", idle, noise);
  }

  EXPECT_LT(least, (1 + kTolerance) * ideal) << "ideal " << ideal << ", measured" << runs;
  if (world().rank() == 0) fmt::print("ideal {:.4f}, measured{}\n", ideal, runs);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Idle,
                         testing::Values(Schedule::gpipe, Schedule::one_forward_one_backward,
                                         Schedule::interleaved, Schedule::zero_bubble),
                         [](const auto& schedule) {
                           return "of_" + std::string(pipeline::name_of(schedule.param));
                         });

}  // namespace
}  // namespace hyperslab::test
