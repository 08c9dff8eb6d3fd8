// SPDX-License-Identifier: Apache-2.0
// The report of a start: the deck's changes, its figures, and commands for what comes
// next.
#include "run_summary.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "hyperslab/deck/deck.hpp"
#include "hyperslab/run/deck_changes.hpp"
#include "hyperslab/train/setup.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab::run {
namespace {

using Words = std::vector<std::string>;

std::vector<DeckChange> changes_of(const Words& before, const Words& after) {
  return deck_changes(deck::to_yaml(test::small_config(before, 1)),
                      deck::to_yaml(test::small_config(after, 1)));
}

TEST(DeckChanges, AreNoneBetweenEqualDecks) { EXPECT_TRUE(changes_of({}, {}).empty()); }

TEST(DeckChanges, NameKeyAndBothValuesInTheOrderOfTheDeck) {
  const auto changes = changes_of({}, {"train.steps=80", "optimizer.lr=0.01", "parallel.zero=1"});

  EXPECT_EQ(changes, (std::vector<DeckChange>{{"parallel.zero", "0", "1", false},
                                              {"optimizer.lr", "0.003", "0.01", true},
                                              {"train.steps", "60", "80", false}}));
  EXPECT_EQ(listed(changes, true), "optimizer.lr 0.003 -> 0.01");
  EXPECT_EQ(listed(changes, false), "parallel.zero 0 -> 1, train.steps 60 -> 80");
}

TEST(DeckChanges, FormerNamesOfKeysAndValuesAreNone) {
  const std::string was = "spikes:\n  policy: walk_back\n  max_walk_backs: 3\n";
  const std::string is = "spikes:\n  policy: roll_back\n  max_roll_backs: 4\n";

  const std::vector<DeckChange> changes = deck_changes(was, is);

  EXPECT_EQ(listed(changes, true), "spikes.max_roll_backs 3 -> 4");
  EXPECT_EQ(listed(changes, false), "");
}

TEST(DeckChanges, ReportWhatChangesTheTraining) {
  for (const char* const set :
       {"optimizer.lr=0.1", "optimizer.betas=[0.5, 0.9]", "optimizer.clip_norm=0",
        "schedule.name=constant", "schedule.warmup_steps=1", "train.global_batch=24",
        "model.dropout=0.2", "train.overfit_one_batch=true", "data.ignore_token=3"}) {
    const auto changes = changes_of({}, {set});
    ASSERT_EQ(changes.size(), 1U) << set;
    EXPECT_TRUE(changes.front().changes_training) << set;
  }
  for (const char* const set :
       {"run.name=other", "run.deterministic=true", "train.microbatch=4", "train.log_every=2",
        "checkpoint.every=7", "timing.trace_steps=[3]", "memory.recompute=full",
        "data.vocabulary=bytes2", "model.attention=reference", "model.bos_token=1",
        "model.eos_tokens=[2]"}) {
    const auto changes = changes_of({}, {set});
    ASSERT_FALSE(changes.empty()) << set;
    for (const DeckChange& change : changes) EXPECT_FALSE(change.changes_training) << set;
  }
}

TEST(DeckChanges, HoldKeysThatTheDeckHasLostNotThoseOfNewerPrograms) {
  const auto changes =
      deck_changes("a:\n  old: 1\n  same: x: y\n", "a:\n  same: x: y\n  new: [1, 2]\n");

  EXPECT_EQ(changes, (std::vector<DeckChange>{{"a.old", "1", "", true}}));
  EXPECT_EQ(listed(changes, true), "a.old 1 -> (no such key)");
}

TEST(Summary, OfAFinishedRun) {
  const RunSummary summary{.first_step = 1,
                           .step = 300,
                           .last_step = 300,
                           .seconds = 150,
                           .all_seconds = 150,
                           .targets = 300 * 512,
                           .last_loss = 2.5,
                           .best = RunSummary::Validation{2.25, 225},
                           .least_memory = 3 << 20,
                           .most_memory = 3 << 20};

  EXPECT_EQ(text_of(summary),
            "finished after step 300: 300 steps in 2 min 30 s, 1024 tokens/s overall; loss of step "
            "300 2.5000, best validation loss 2.2500 (step 225), peak memory 3.0 MiB a rank");
}

TEST(Summary, OfAStopOnRequestAfterAResume) {
  const RunSummary summary{.first_step = 101,
                           .step = 150,
                           .last_step = 300,
                           .on_request = true,
                           .seconds = 50,
                           .all_seconds = 110,
                           .targets = 5000,
                           .last_loss = 3,
                           .least_memory = 1LL << 30,
                           .most_memory = 3LL << 29};

  EXPECT_EQ(
      text_of(summary),
      "stopped on request after step 150 of 300: 50 steps in 50 s (1 min 50 s with earlier "
      "starts), 100 tokens/s overall; loss of step 150 3.0000, peak memory 1.00 GiB to 1.50 GiB a "
      "rank");
}

TEST(Summary, CountsBrokenImages) {
  RunSummary summary{.first_step = 1, .step = 2, .last_step = 2, .seconds = 2, .targets = 32};
  summary.of_images = true;
  summary.broken_images = 3;

  EXPECT_EQ(
      text_of(summary),
      "finished after step 2: 2 steps in 2 s, 16 images/s overall; loss of step 2 0.0000, 3 of "
      "32 images broken, which did not count, peak memory 0.0 MiB a rank");
}

TEST(Summary, BestValidationIsTheLowestOfAllStarts) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  EXPECT_FALSE(best_validation(path));
  std::ofstream(path) << R"({"step": 1, "loss": 0.5}
{"step": 2, "loss": 4, "validation_loss": 3.5}
{"step": 4, "loss": 4, "validation_loss": 3.25}
{"step": 5, "loss": 4, "validation_loss": null}
{"step": 6, "loss": 4, "validation_loss": 3.75}
{"step": 7, "validation_loss": 1)";

  const auto best = best_validation(path);

  ASSERT_TRUE(best);
  EXPECT_EQ(best->loss, 3.25);
  EXPECT_EQ(best->step, 4);
}

TEST(Commands, ResumeWithoutTheOptionsOfOneStart) {
  const StartCommand command = {{"mpirun", "-np", "2"},
                                "bin/hyperslab",
                                {"my deck.yaml", "--resume", "never", "--set", "data.train=[a.bin]",
                                 "--stop-after=5", "--set", "run.name=it's"}};

  EXPECT_EQ(shell_line(resume_words(command, {"--set", "train.steps=8"})),
            "mpirun -np 2 bin/hyperslab train 'my deck.yaml' --set 'data.train=[a.bin]' --set "
            "'run.name=it'\\''s' --set train.steps=8");
}

TEST(Commands, ResumeWithEveryKeyOnce) {
  const StartCommand command = {{},
                                "hyperslab",
                                {"deck.yaml", "--set", "train.steps=30", "--set=train.steps=40",
                                 "--set", "train.microbatch=2"}};

  EXPECT_EQ(shell_line(resume_words(command, {"--set", "train.steps=60"})),
            "hyperslab train deck.yaml --set train.microbatch=2 --set train.steps=60");
}

TEST(Commands, OfEqualKeysTheLastAloneIsPrinted) {
  const StartCommand command = {
      {},
      "hyperslab",
      {"deck.yaml", "--set", "parallel.data=1", "--set=parallel.tensor=1", "--set",
       "parallel.data=2", "--set", "parallel.data_ranks=3", "--set", "parallel.tensor=4"}};

  EXPECT_EQ(shell_line(resume_words(command, {})),
            "hyperslab train deck.yaml --set parallel.data=2 --set parallel.data_ranks=3 --set "
            "parallel.tensor=4");
}

TEST(Validation, TakesGlobalBatchesWhateverTheMicrobatch) {
  for (const char* const microbatch : {"train.microbatch=1", "train.microbatch=6"}) {
    const train::Config config = test::small_config({"train.validate_batches=3", microbatch}, 1);
    EXPECT_EQ(train::validation_samples(config, 100), 36);
    EXPECT_EQ(train::validation_samples(config, 36), 36);
    EXPECT_EQ(train::validation_samples(config, 35), 35);
  }
  EXPECT_EQ(train::validation_samples(test::small_config({}, 1), 100), 100);
  EXPECT_EQ(train::validation_samples(
                test::small_config({"train.validate_batches=1000000000000",
                                    "train.global_batch=16777216", "train.microbatch=1"},
                                   1),
                100),
            100);
}

}  // namespace
}  // namespace hyperslab::run
