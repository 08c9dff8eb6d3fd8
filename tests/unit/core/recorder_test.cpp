// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/recorder.hpp"

#include <gtest/gtest.h>

#include <numeric>

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

TEST(Recorder, TracesOnlyWhereAsked) {
  Recorder recorder;
  recorder.begin_step(1, false);
  { const Scope scope(recorder, Component::ffn); }
  recorder.end_step();
  EXPECT_TRUE(recorder.events().empty());

  recorder.begin_step(2, true);
  recorder.set_microbatch(3);
  { const Scope scope(recorder, Component::ffn); }
  recorder.add_reduction(recorder.step_start() + 1, recorder.step_start() + 3);
  const StepTimes& times = recorder.end_step();

  ASSERT_EQ(recorder.events().size(), 2U);
  EXPECT_EQ(recorder.events()[0].name, "ffn");
  EXPECT_EQ(recorder.events()[0].microbatch, 3);
  EXPECT_LE(recorder.events()[0].start_seconds, recorder.events()[0].end_seconds);
  EXPECT_NEAR(times.reduce_seconds, 2.0, 1e-9);
}

}  // namespace
}  // namespace hyperslab
