// SPDX-License-Identifier: Apache-2.0
#include "learning_rate_change.hpp"

#include <gtest/gtest.h>

#include "hyperslab/deck/deck.hpp"
#include "train/small_run.hpp"

namespace hyperslab::run {
namespace {

using Words = std::vector<std::string>;

const Words kSchedule = {"train.steps=60", "schedule.name=linear", "schedule.warmup_steps=0",
                         "schedule.final_fraction=0.1", "optimizer.lr=0.01"};

/// The line after `step` with a deck that adds `changed` to that of the checkpoint.
std::string line(const Words& changed, std::int64_t step, const Words& earlier = kSchedule) {
  Words words = earlier;
  words.insert(words.end(), changed.begin(), changed.end());
  const train::Config config = test::small_config(words, 1);
  constexpr std::int64_t kSamplesPerEpoch = 120;
  return learning_rate_change(deck::to_yaml(test::small_config(earlier, 1)), deck::to_yaml(config),
                              config, step, kSamplesPerEpoch);
}

TEST(LearningRateChange, OfAScheduleThatHadEnded) {
  EXPECT_EQ(line({"train.steps=90"}, 60),
            "step 61 has a learning rate of 0.0039, by the deck of step 60 it was 0.001 "
            "(train.steps 60 -> 90)");
}

TEST(LearningRateChange, OfEveryKeyOfTheSchedule) {
  EXPECT_EQ(line({"optimizer.lr=0.02"}, 29),
            "step 30 has a learning rate of 0.011, by the deck of step 29 it was 0.0055 "
            "(optimizer.lr 0.01 -> 0.02)");
  EXPECT_EQ(line({"schedule.name=constant"}, 29),
            "step 30 has a learning rate of 0.01, by the deck of step 29 it was 0.0055 "
            "(schedule.name linear -> constant)");
  EXPECT_EQ(line({"schedule.final_fraction=0.3"}, 29),
            "step 30 has a learning rate of 0.0065, by the deck of step 29 it was 0.0055 "
            "(schedule.final_fraction 0.1 -> 0.3)");
  EXPECT_EQ(line({"schedule.warmup_steps=40"}, 29),
            "step 30 has a learning rate of 0.0075, by the deck of step 29 it was 0.0055 "
            "(schedule.warmup_steps 0 -> 40)");
  EXPECT_EQ(line({"train.steps=120", "optimizer.lr=0.02"}, 29),
            "step 30 has a learning rate of 0.0155, by the deck of step 29 it was 0.0055 "
            "(optimizer.lr 0.01 -> 0.02, train.steps 60 -> 120)");
}

TEST(LearningRateChange, OfDecaysAndEpochs) {
  const Words wsd = {
      "train.steps=60",    "schedule.name=wsd",           "schedule.warmup_steps=0",
      "optimizer.lr=0.01", "schedule.decay_fraction=0.5", "schedule.final_fraction=0"};
  EXPECT_EQ(line({"schedule.decay_fraction=0.25"}, 44, wsd),
            "step 45 has a learning rate of 0.01, by the deck of step 44 it was 0.005 "
            "(schedule.decay_fraction 0.5 -> 0.25)");
  Words epochs = kSchedule;
  epochs[0] = "train.steps=0";
  epochs.insert(epochs.end(), {"train.epochs=1", "train.global_batch=12"});
  EXPECT_EQ(line({"train.epochs=2"}, 9, epochs),
            "step 10 has a learning rate of 0.0055, by the deck of step 9 it was 0.001 "
            "(train.epochs 1 -> 2)");
}

TEST(LearningRateChange, IsNoneWhereTheRateIsTheSame) {
  EXPECT_EQ(line({}, 60), "");
  EXPECT_EQ(line({"train.validate_every=0", "optimizer.weight_decay=0"}, 60), "");
  Words constant = kSchedule;
  constant[1] = "schedule.name=constant";
  EXPECT_EQ(line({"train.steps=90"}, 60, constant), "");
  Words wsd = kSchedule;
  wsd[1] = "schedule.name=wsd";
  EXPECT_EQ(line({"train.steps=90"}, 30, wsd), "") << "before its decay";
  EXPECT_EQ(line({"schedule.warmup_steps=10"}, 60), "");
}

}  // namespace
}  // namespace hyperslab::run
