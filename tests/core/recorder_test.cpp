// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/recorder.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

void spend(double seconds) {
  const double end = now_seconds() + seconds;
  while (now_seconds() < end) {
  }
}

TEST(Recorder, PhasesPartTheStep) {
  Recorder recorder;
  recorder.begin_step(7, false);
  {
    const Scope forward(recorder, Phase::forward);
    spend(0.002);
    {
      const Scope backward(recorder, Phase::backward);
      spend(0.004);
    }
    spend(0.002);
  }
  const StepTimes& times = recorder.end_step();

  EXPECT_EQ(times.step, 7);
  EXPECT_GE(times.phase(Phase::forward), 0.004);
  EXPECT_GE(times.phase(Phase::backward), 0.004);
  const double sum = std::accumulate(times.phase_seconds.begin(), times.phase_seconds.end(), 0.0);
  EXPECT_NEAR(sum, times.step_seconds, 1e-9);
}

TEST(Recorder, OnlyTimeWithAReductionUnderWayIsExposed) {
  Recorder recorder;
  recorder.begin_step(1, false);
  const double begin = now_seconds();
  {
    const Scope exposed(recorder, Phase::reduce_exposed);
    spend(0.02);
  }
  recorder.add_reduction(begin, begin + 0.005);
  const StepTimes& times = recorder.end_step();

  EXPECT_NEAR(times.phase(Phase::reduce_exposed), 0.005, 1e-9);
  EXPECT_GE(times.phase(Phase::wait), 0.015);
  const double sum = std::accumulate(times.phase_seconds.begin(), times.phase_seconds.end(), 0.0);
  EXPECT_NEAR(sum, times.step_seconds, 1e-9);
}

TEST(Recorder, APhaseGivesNoMoreThanItHas) {
  StepTimes times;
  times.phase_seconds[static_cast<std::size_t>(Phase::backward)] = 3;

  times.move(Phase::backward, Phase::wait, 1);
  EXPECT_EQ(times.phase(Phase::backward), 2);
  times.move(Phase::backward, Phase::wait, 5);
  EXPECT_EQ(times.phase(Phase::backward), 0);
  times.move(Phase::wait, Phase::backward, -1);
  EXPECT_EQ(times.phase(Phase::wait), 3);
}

TEST(Recorder, TracesOnlyIfAsked) {
  Recorder recorder;
  recorder.begin_step(1, false);
  { const Scope scope(recorder, Component{3, "ffn"}); }
  recorder.end_step();
  EXPECT_TRUE(recorder.events().empty());

  recorder.begin_step(2, true);
  recorder.set_microbatch(3);
  { const Scope scope(recorder, Component{3, "ffn"}); }
  recorder.add_reduction(recorder.step_start() + 1, recorder.step_start() + 3);
  const StepTimes& times = recorder.end_step();

  ASSERT_EQ(recorder.events().size(), 2U);
  EXPECT_EQ(recorder.events()[0].name, "ffn");
  EXPECT_EQ(recorder.events()[0].microbatch, 3);
  EXPECT_LE(recorder.events()[0].start_seconds, recorder.events()[0].end_seconds);
  EXPECT_NEAR(times.reduce_seconds, 2.0, 1e-9);
}

TEST(Recorder, OperationsAndMessagesOfATracedStep) {
  Recorder recorder(2);
  recorder.begin_step(1, false);
  recorder.add_operation({.group = "data", .operation = "all_reduce"});
  recorder.add_message({.group = "pipeline", .ticket = 5, .sends = true, .peer = 1, .bytes = 64});
  recorder.end_step();
  EXPECT_TRUE(recorder.operations().empty());
  EXPECT_TRUE(recorder.messages().empty());

  recorder.begin_step(2, true);
  recorder.set_microbatch(4);
  const double start = recorder.step_start();
  for (int i = 0; i < 3; ++i) {
    recorder.add_operation({.group = "data",
                            .operation = "all_reduce",
                            .ticket = 9,
                            .bytes = 128,
                            .call_seconds = start - 1,
                            .wait_seconds = start + 2,
                            .end_seconds = start + 3});
  }
  recorder.add_message({.group = "pipeline", .ticket = 5, .sends = true, .peer = 1, .bytes = 64});
  recorder.end_step();

  ASSERT_EQ(recorder.operations().size(), 2U);
  EXPECT_EQ(recorder.lost(), 1) << "what finds no room is counted";
  const TraceOperation& operation = recorder.operations().front();
  EXPECT_EQ(operation.microbatch, 4);
  EXPECT_NEAR(operation.call_seconds, -1, 1e-9);
  EXPECT_NEAR(operation.wait_seconds, 2, 1e-9);
  EXPECT_NEAR(operation.end_seconds, 3, 1e-9);
  ASSERT_EQ(recorder.messages().size(), 1U);
  EXPECT_TRUE(recorder.messages().front().sends);

  recorder.begin_step(3, false);
  EXPECT_TRUE(recorder.operations().empty());
  EXPECT_EQ(recorder.lost(), 0);
}

TEST(Recorder, AComponentsSecondsGoToItsIndex) {
  constexpr Component kPart = {5, "part"};
  Recorder recorder;
  recorder.begin_step(1, false);
  EXPECT_EQ(recorder.component(), Component{});
  {
    const Scope scope(recorder, kPart);
    EXPECT_EQ(recorder.component(), kPart);
    const double end = now_seconds() + 0.002;
    while (now_seconds() < end) {
    }
  }
  EXPECT_THROW(Scope(recorder, Component{kMaxComponents, "beyond"}), Error);
  const StepTimes& times = recorder.end_step();

  EXPECT_GE(times.component(kPart), 0.002);
  EXPECT_LE(times.component(kPart), times.step_seconds);
}

double busy_seconds(const std::vector<std::array<double, 2>>& reductions) {
  Recorder recorder;
  recorder.begin_step(1, false);
  const double start = recorder.step_start();
  for (const auto& [begin, end] : reductions) recorder.add_reduction(start + begin, start + end);
  return recorder.end_step().reduce_busy_seconds;
}

TEST(Recorder, TimeWithSeveralReductionsUnderWayCountsOnce) {
  EXPECT_EQ(busy_seconds({}), 0);
  EXPECT_NEAR(busy_seconds({{1, 2}, {3, 5}}), 3, 1e-9);
  EXPECT_NEAR(busy_seconds({{1, 4}, {3, 5}, {2, 3}}), 4, 1e-9);
  EXPECT_NEAR(busy_seconds({{6, 7}, {3, 5}, {1, 2}, {1.5, 6.5}}), 6, 1e-9) << "in any order";
  EXPECT_NEAR(busy_seconds({{2, 2}, {5, 6}, {1, 7}, {6, 8}}), 7, 1e-9);
}

TEST(Recorder, BusyTimeStartsAtZeroInEveryStep) {
  Recorder recorder;
  for (int step = 1; step <= 2; ++step) {
    recorder.begin_step(step, false);
    recorder.add_reduction(recorder.step_start(), recorder.step_start() + step);
    EXPECT_NEAR(recorder.end_step().reduce_busy_seconds, step, 1e-9);
  }
}

TEST(Recorder, ManyReductionsApartAreAllCounted) {
  std::vector<std::array<double, 2>> reductions;
  for (int i = 0; i < 2000; ++i) reductions.push_back({2.0 * i, 2.0 * i + 1});
  EXPECT_NEAR(busy_seconds(reductions), 2000, 1e-6);
  reductions.push_back({0, 4000});
  const double seen = busy_seconds(reductions);
  EXPECT_LE(seen, 4000);
  EXPECT_GE(seen, 2000);
}

}  // namespace
}  // namespace hyperslab
