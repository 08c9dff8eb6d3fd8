// SPDX-License-Identifier: Apache-2.0
#include "spikes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::run {
namespace {

using Policy = train::SpikePolicy;

constexpr train::SpikeConfig kConfig = {
    .policy = Policy::log, .window = 16, .z_score = 6, .warmup = 20, .max_roll_backs = 8};

train::SpikeConfig with(Policy policy) {
  train::SpikeConfig config = kConfig;
  config.policy = policy;
  return config;
}

/// A loss that falls and wavers, the same for every caller.
double usual(std::int64_t step) {
  const auto at = static_cast<double>(step);
  return 3 + 2 / at + 0.05 * std::sin(1.7 * at);
}

ops::StepResult result(std::int64_t step, double loss, double norm = 1) {
  ops::StepResult out;
  out.step = step;
  out.tokens = out.weights = 10;
  out.loss_sum = 10 * loss;
  out.gradient_norm = norm;
  return out;
}

TEST(RunningMoments, AreThoseOfAllValuesUntilTheWindowIsFull) {
  RunningMoments moments;
  const std::vector<double> values = {2, 4, 9};
  for (std::size_t i = 0; i < values.size(); ++i) {
    moments.add(values[i], static_cast<std::int64_t>(i) + 1, 100);
  }

  EXPECT_DOUBLE_EQ(moments.mean, 5);
  EXPECT_NEAR(moments.variance, 26.0 / 3, 1e-12);
  EXPECT_NEAR(moments.z_score(5 + 2 * std::sqrt(26.0 / 3)), 2, 1e-12);
}

TEST(RunningMoments, ForgetWhatIsOlderThanTheWindow) {
  RunningMoments moments;
  for (std::int64_t n = 1; n <= 100; ++n) moments.add(n <= 20 ? 100 : 1, n, 9);

  EXPECT_NEAR(moments.mean, 1, 1e-3);
}

TEST(SpikeDetector, SeesNoSpikeInTheWarmUpNorInUsualSteps) {
  SpikeDetector detector(kConfig);
  EXPECT_FALSE(detector.judge(1, 1).is_spike);
  EXPECT_FALSE(detector.judge(1000, 1).is_spike);
  SpikeDetector usual_steps(kConfig);
  for (std::int64_t step = 1; step <= 500; ++step) {
    EXPECT_FALSE(usual_steps.judge(usual(step), usual(step + 3)).is_spike) << step;
  }
}

TEST(SpikeDetector, ASpikeOfLossOrNormLeavesTheStatisticsAsTheyWere) {
  SpikeDetector detector(kConfig);
  for (std::int64_t step = 1; step <= 50; ++step) detector.judge(usual(step), usual(step));
  const SpikeDetector::State before = detector.state();

  const auto of_loss = detector.judge(9, 3);
  const auto of_norm = detector.judge(3, 9);

  EXPECT_TRUE(of_loss.is_spike);
  EXPECT_GT(of_loss.loss_z, 6);
  EXPECT_TRUE(of_norm.is_spike);
  EXPECT_EQ(of_norm.z(), of_norm.norm_z);
  EXPECT_EQ(detector.state().loss.mean, before.loss.mean);
  EXPECT_EQ(detector.state().norm.variance, before.norm.variance);
  EXPECT_FALSE(detector.judge(1, 1).is_spike);  // what is low is none
}

TEST(SpikeDetector, ANumberThatHardlyMovesHasNoSpikes) {
  SpikeDetector detector(kConfig);
  for (int i = 0; i < 100; ++i) detector.judge(2, 1);

  EXPECT_FALSE(detector.judge(2.001, 1).is_spike);
  EXPECT_TRUE(detector.judge(2.1, 1).is_spike);
}

TEST(SpikeDetector, ANewLevelBeginsAnew) {
  SpikeDetector detector(kConfig);
  for (std::int64_t step = 1; step <= 50; ++step) detector.judge(usual(step), 1);
  int spikes = 0;
  bool began_anew = false;
  for (std::int64_t step = 51; step <= 150; ++step) {
    const auto verdict = detector.judge(10 + usual(step), 1);
    spikes += verdict.is_spike ? 1 : 0;
    began_anew = began_anew || verdict.begins_anew;
  }

  EXPECT_EQ(spikes, SpikeDetector::kMostInARow);
  EXPECT_TRUE(began_anew);
}

TEST(Spikes, WhatIsNotFiniteOrHasNoTargetIsNotJudged) {
  Spikes spikes(with(Policy::log));
  for (std::int64_t step = 1; step <= 50; ++step) (void)spikes.take(result(step, usual(step)));
  const std::string before = spikes.checkpoint_text();
  ops::StepResult skipped = result(51, std::nan(""));
  skipped.skipped = 1;
  ops::StepResult empty = result(52, 0);
  empty.tokens = empty.weights = 0;

  EXPECT_FALSE(spikes.take(skipped));
  EXPECT_FALSE(spikes.take(empty));

  EXPECT_EQ(spikes.checkpoint_text(), before);
  EXPECT_TRUE(spikes.take(result(53, 9)));
  EXPECT_EQ(spikes.spikes(), 1);
  EXPECT_EQ(spikes.left_out(), 0);
}

TEST(Spikes, IgnoreKnowsNothing) {
  Spikes spikes(with(Policy::ignore));
  for (std::int64_t step = 1; step <= 50; ++step) (void)spikes.take(result(step, usual(step)));

  EXPECT_FALSE(spikes.take(result(51, 1000)));
  EXPECT_EQ(spikes.checkpoint_text(), "");
}

TEST(Spikes, ASkippedStepIsReportedWhenItsResultIsRead) {
  Spikes spikes(with(Policy::skip));
  for (std::int64_t step = 1; step <= 50; ++step) {
    EXPECT_FALSE(spikes.judge_before_update(step, usual(step), 1));
    EXPECT_FALSE(spikes.take(result(step, usual(step))));
  }
  EXPECT_TRUE(spikes.judge_before_update(51, 9, 1));

  const auto spike = spikes.take(result(51, 9));

  ASSERT_TRUE(spike);
  EXPECT_TRUE(spike->left_out);
  EXPECT_GT(spike->verdict.z(), 6);
  EXPECT_EQ(spikes.left_out(), 1);
}

TEST(Spikes, ARestoredOneDecidesAsAnUndisturbedOne) {
  Spikes whole(with(Policy::log));
  Spikes first(with(Policy::log));
  for (std::int64_t step = 1; step <= 45; ++step) {
    const auto seen = result(step, step == 40 ? 9 : usual(step));
    (void)whole.take(seen);
    (void)first.take(seen);
  }
  Spikes second(with(Policy::log));
  second.restore(first.checkpoint_text());

  for (std::int64_t step = 46; step <= 200; ++step) {
    const auto seen = result(step, usual(step) + (step % 37 == 0 ? 2 : 0));
    const auto expected = whole.take(seen);
    const auto found = second.take(seen);
    ASSERT_EQ(found.has_value(), expected.has_value()) << step;
    if (found) {
      EXPECT_EQ(found->verdict.loss_z, expected->verdict.loss_z);
    }
  }
  EXPECT_EQ(second.checkpoint_text(), whole.checkpoint_text());
  EXPECT_GT(whole.spikes(), 2);
}

TEST(Spikes, AStepThatTrainingWentBackForIsLeftOutForGood) {
  Spikes spikes(with(Policy::roll_back));
  for (std::int64_t step = 1; step <= 40; ++step) (void)spikes.take(result(step, usual(step)));
  const std::string saved = spikes.checkpoint_text();
  for (std::int64_t step = 41; step <= 50; ++step) (void)spikes.take(result(step, usual(step)));
  ASSERT_TRUE(spikes.take(result(51, 9)));

  spikes.go_back_for(51);
  spikes.restore(saved);

  EXPECT_EQ(spikes.spikes(), 0);
  EXPECT_TRUE(spikes.leaves_out(51));
  EXPECT_FALSE(spikes.leaves_out(50));
  const auto again = spikes.take(result(51, 9));
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->left_out);
  Spikes resumed(with(Policy::roll_back));
  resumed.restore(saved);
  EXPECT_FALSE(resumed.leaves_out(51));
  resumed.add_left_out(spikes.left_out_text(), "f");
  EXPECT_TRUE(resumed.leaves_out(51));
  EXPECT_EQ(resumed.roll_backs(), 1);
}

TEST(Spikes, TheNumberOfRollbacksIsReadUnderItsFormerName) {
  Spikes spikes(with(Policy::roll_back));

  spikes.add_left_out(R"({"left_out":[7],"walk_backs":2})", "f");

  EXPECT_TRUE(spikes.leaves_out(7));
  EXPECT_EQ(spikes.roll_backs(), 2);
}

TEST(Spikes, ARecordThatCannotBeReadIsAnErrorOfTheCheckpoint) {
  Spikes spikes(with(Policy::log));
  for (const char* const text : {"nonsense", "{}", "[1]", R"({"seen": "x"})"}) {
    try {
      spikes.restore(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint) << text;
    }
  }
}

std::string refusal_of_left_out(const std::string& text) {
  Spikes spikes(with(Policy::roll_back));
  try {
    spikes.add_left_out(text, "dir/left_out_steps.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint) << text;
    return error.what();
  }
  return "none";
}

TEST(Spikes, AFileOfStepsThatCannotBeReadIsNamed) {
  for (const char* const text :
       {"{", "[1]", R"({"left_out":[8]})", R"({"left_out":[0],"roll_backs":1})",
        R"({"left_out":[8],"roll_backs":-1})", R"({"left_out":[8],"roll_backs":1e300})"}) {
    EXPECT_TRUE(refusal_of_left_out(text).starts_with("dir/left_out_steps.json cannot be read: "))
        << text;
  }
}

TEST(Spikes, ARecordWithNumbersThatCannotBeIsRefused) {
  Spikes spikes(with(Policy::log));
  (void)spikes.take(result(1, usual(1)));
  const std::string good = spikes.checkpoint_text();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " is not in " << good;
    return text.replace(at, from.size(), to);
  };
  spikes.restore(good);
  for (const std::string& text :
       {changed(R"("seen":1)", R"("seen":-5)"),
        changed(R"("seen":1)", R"("seen":9223372036854775807)"),
        changed(R"("in_a_row":0)", R"("in_a_row":99999999999)"),
        changed(R"("in_a_row":0)", R"("in_a_row":18446744073709551615)"),
        changed(R"("spikes":0)", R"("spikes":0.5)"), changed(R"("skipped":0)", R"("skipped":-1)"),
        changed(R"("loss":[)", R"("loss":[1,-1],"other":[)"),
        changed(R"("left_out":[])", R"("left_out":[-1])")}) {
    EXPECT_THROW(spikes.restore(text), Error) << text;
  }
}

}  // namespace
}  // namespace hyperslab::run
