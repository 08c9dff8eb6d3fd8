// SPDX-License-Identifier: Apache-2.0
// Overrides of the length of a run, and what of the deck file then no longer fits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

using Overrides = std::vector<std::string>;

struct Read {
  train::Config config;
  std::string cuts;
};

Read shortened(const std::string& text, const Overrides& overrides) {
  Read out;
  out.config = read_deck(text, "deck.yaml", overrides, {}, &out.cuts);
  return out;
}

const std::string kLong = with(kValid, "data:", R"(schedule: {warmup_steps: 700}
checkpoint: {every: 1000, keep_every: 5000}
timing: {trace_steps: [3, 10, 11, 200]}
data:)");
const std::string kThousand = with(kLong, "steps: 10\n", "steps: 10000\n");

TEST(Shorten, CutsWarmUpAndTracedStepsAndSaysSo) {
  const auto [config, cuts] = shortened(kThousand, {"train.steps=10"});

  EXPECT_EQ(config.schedule.warmup_steps, 10);
  EXPECT_EQ(config.timing.trace_steps, (std::vector<std::int64_t>{3, 10}));
  EXPECT_EQ(config.checkpoint.keep_every, 5000);
  EXPECT_EQ(cuts,
            "schedule.warmup_steps cut from 700 to 10, timing.trace_steps cut to the 2 up to step "
            "10");
  EXPECT_EQ(read(to_yaml(config)), config);
}

TEST(Shorten, LeavesWhatFits) {
  const auto [config, cuts] = shortened(kThousand, {"train.steps=700"});

  EXPECT_EQ(config.schedule.warmup_steps, 700);
  EXPECT_EQ(config.timing.trace_steps.size(), 4U);
  EXPECT_EQ(cuts, "");
}

TEST(Shorten, LeavesRoomForTheDecayOfWsd) {
  const auto deck =
      with(kThousand, "warmup_steps: 700", "warmup_steps: 700, name: wsd, decay_fraction: 0.4");

  EXPECT_EQ(shortened(deck, {"train.steps=10"}).config.schedule.warmup_steps, 6);
}

TEST(Shorten, DropsTheOtherOfStepsAndEpochs) {
  const auto by_epochs = with(kValid, "steps: 10\n", "epochs: 2\n");
  const auto steps = shortened(by_epochs, {"train.steps=5"});
  EXPECT_EQ(steps.config.train.steps, 5);
  EXPECT_EQ(steps.config.train.epochs, 0);
  EXPECT_EQ(steps.cuts, "train.epochs 2 left out");

  const auto epochs = shortened(kValid, {"train.epochs=3"});
  EXPECT_EQ(epochs.config.train.steps, 0);
  EXPECT_EQ(epochs.config.train.epochs, 3);
  EXPECT_EQ(epochs.cuts, "train.steps 10 left out");
}

TEST(Shorten, DropsMilestonesWithPeriodicCheckpoints) {
  const auto [config, cuts] = shortened(kThousand, {"checkpoint.every=0"});

  EXPECT_EQ(config.checkpoint.every, 0);
  EXPECT_EQ(config.checkpoint.keep_every, 0);
  EXPECT_TRUE(config.checkpoint.final);
  EXPECT_EQ(cuts, "checkpoint.keep_every 5000 left out");
}

TEST(Shorten, KeepsWhatOverridesSayThemselves) {
  EXPECT_EQ(refusal(kThousand, {"train.steps=10", "schedule.warmup_steps=20"}),
            "--set schedule.warmup_steps=20: 20 warm-up steps are more than the 10 steps of the "
            "run; nearest: 10");
  EXPECT_EQ(refusal(kValid, {"train.steps=10", "train.epochs=2"}),
            "--set train.steps=10: give one of train.steps (10) and train.epochs (2), not both");
  EXPECT_EQ(refusal(kValid, {"checkpoint.every=0", "checkpoint.keep_every=5"}),
            "--set checkpoint.keep_every=5: milestones need checkpoints: set checkpoint.every");
}

TEST(Shorten, RefusesADeckThatContradictsItself) {
  EXPECT_NE(refusal(kLong), "accepted");
  EXPECT_NE(refusal(kLong, {"optimizer.lr=0.1"}), "accepted");
  EXPECT_NE(refusal(with(kValid, "steps: 10", "steps: 10\n  epochs: 2"), {"optimizer.lr=0.1"}),
            "accepted");
}

}  // namespace
}  // namespace hyperslab::deck::test
