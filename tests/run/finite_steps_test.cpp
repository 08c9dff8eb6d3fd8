// SPDX-License-Identifier: Apache-2.0
#include "finite_steps.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace hyperslab::run {
namespace {

ops::StepResult result_of(std::int64_t step, bool finite, double loss = 1) {
  ops::StepResult out;
  out.step = step;
  out.loss_sum = loss;
  out.skipped = finite ? 0 : 1;
  return out;
}

TEST(FiniteSteps, AFiniteStepProvesTheWeightsBeforeIt) {
  FiniteSteps steps(1);
  EXPECT_TRUE(steps.newest_is_finite());
  EXPECT_LT(steps.proven(), 0);

  steps.add(result_of(1, true));
  steps.add(result_of(2, true));
  EXPECT_EQ(steps.proven(), 1);
}

TEST(FiniteSteps, OthersProveNothingAndAreCounted) {
  FiniteSteps steps(7);
  EXPECT_EQ(steps.proven(), 5) << "that the resumed step 6 is sound is not known yet";
  steps.add(result_of(7, true));
  for (int step = 8; step <= 10; ++step) steps.add(result_of(step, false));

  EXPECT_EQ(steps.proven(), 6);
  EXPECT_EQ(steps.in_a_row(), 3);
  EXPECT_FALSE(steps.newest_is_finite());

  steps.add(result_of(11, true));
  EXPECT_EQ(steps.in_a_row(), 0);
  EXPECT_EQ(steps.proven(), 10) << "a step that was not finite left the weights as they were";
}

TEST(FiniteSteps, AnOverflowOfTheGradientsAloneIsReported) {
  FiniteSteps steps(1);
  EXPECT_FALSE(steps.only_gradients_overflowed());
  steps.add(result_of(1, false, 2.5));
  EXPECT_TRUE(steps.only_gradients_overflowed());
  steps.add(result_of(2, false, std::nan("")));
  EXPECT_FALSE(steps.only_gradients_overflowed());
}

using Save = FiniteSteps::Save;

TEST(FiniteSteps, ACheckpointWaitsForAFiniteStep) {
  for (const bool scales_loss : {false, true}) {
    FiniteSteps steps(1);
    steps.add(result_of(1, true));
    EXPECT_EQ(steps.decide(false, scales_loss), Save::now);
    EXPECT_FALSE(steps.save_is_due());

    steps.add(result_of(2, false));  // with a finite loss
    EXPECT_EQ(steps.decide(false, scales_loss), Save::later);
    EXPECT_TRUE(steps.save_is_due());
    steps.add(result_of(3, false));
    EXPECT_EQ(steps.decide(false, scales_loss), Save::later);
    steps.add(result_of(4, true));
    EXPECT_TRUE(steps.save_is_due()) << "until someone asks";
    EXPECT_EQ(steps.decide(false, scales_loss), Save::now);
    EXPECT_FALSE(steps.save_is_due());
  }
}

TEST(FiniteSteps, AtTheEndOnlyALossScaleSavesWithoutOne) {
  FiniteSteps steps(1);
  steps.add(result_of(1, true));
  EXPECT_EQ(steps.decide(true, false), Save::now);
  steps.add(result_of(2, false, 2.5));
  EXPECT_EQ(steps.decide(true, false), Save::never);
  EXPECT_EQ(steps.decide(true, true), Save::now);
  steps.add(result_of(3, false, INFINITY));
  EXPECT_EQ(steps.decide(true, true), Save::never);
}

TEST(FiniteSteps, SavesThatFailAreCountedAndWaitForTheNextOne) {
  FiniteSteps steps(1);
  steps.add(result_of(1, true));
  for (int failed = 1; failed <= 2; ++failed) {
    EXPECT_EQ(steps.decide(false, false), Save::now);
    steps.note_save(false);
    EXPECT_EQ(steps.failed_saves(), failed);
    EXPECT_FALSE(steps.save_is_due());
  }
  steps.note_save(true);
  EXPECT_EQ(steps.failed_saves(), 0);
}

}  // namespace
}  // namespace hyperslab::run
