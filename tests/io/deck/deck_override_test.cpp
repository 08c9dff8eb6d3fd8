// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

TEST(Overrides, WinOverTheDeckAndTheLaterOverTheEarlier) {
  const auto config = read(kValid, {"train.steps=20", "optimizer.lr=1e-2", "train.steps=30"});

  EXPECT_EQ(config.train.steps, 30);
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 1e-2);
}

TEST(Overrides, HealWhatTheDeckHasWrong) {
  const auto config = read(with(kValid, "steps: 10", "steps: ten"), {"train.steps=20"});

  EXPECT_EQ(config.train.steps, 20);
}

TEST(Overrides, AreYaml) {
  const auto config = read(kValid, {"data.train=[a.bin, \"b c.bin\"]", "optimizer.betas=[0.8, 0.9]",
                                    "checkpoint.keep=all", "run.directory=a=b",
                                    "checkpoint.directory=null", "data.vocabulary="});

  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.bin", "b c.bin"}));
  EXPECT_EQ(config.optimizer.betas, (std::array<double, 2>{0.8, 0.9}));
  EXPECT_EQ(config.checkpoint.keep, 0);
  EXPECT_EQ(config.run.directory, "a=b");
  EXPECT_EQ(config.checkpoint.directory, "");
  EXPECT_EQ(config.data.vocabulary, "");
}

TEST(Overrides, SetTheFamilyBeforeOtherKeys) {
  const auto config = read(kValid, {"model.bias=true", "model.family=gpt2"});

  EXPECT_EQ(config.model.position, model::Position::learned);
  EXPECT_TRUE(config.model.bias);
}

TEST(Overrides, MakeSectionsThatTheDeckLacksOrLeavesEmpty) {
  EXPECT_EQ(read(kValid + "timing:\n", {"timing.every=5"}).timing.every, 5);
  EXPECT_EQ(read(kValid, {"timing.every=5"}).timing.every, 5);
}

TEST(Overrides, WrongInTheSameWayTwiceAreNamedOnce) {
  const std::string message = refusal(kValid, {"optimizer.betas=[1, 1]"});

  EXPECT_EQ(message, "--set optimizer.betas=[1, 1]: must be at least 0 and less than 1, found 1");
}

TEST(Overrides, ProblemsNameThem) {
  const std::vector<std::string> overrides = {
      "model.heads=x",      "model.heeds=4",     "modle.width=4",   "train=4",   "layers",
      "model.kv_heads=0x2", "steps=5",           "optimizer.lr=[1", "run.seed=", "optimiser.lr=1",
      "run.name=null",      "data.train={a: b}", "model.lr=4",      "zzz.zzz=4"};

  EXPECT_EQ(
      refusal(kValid, {"schedule.warmup=1", "precision.foo=1"}),
      "--set schedule.warmup=1: unknown key 'schedule.warmup' (did you mean "
      "'schedule.warmup_steps'?)\n"
      "--set precision.foo=1: unknown key 'precision.foo' (known are compute, gradients, gemm, "
      "fp8_min_width, fp8_keep_first, fp8_keep_last, fp8_cache_weights or fp8_param_gather)");
  EXPECT_EQ(refusal(kValid, overrides),
            "--set model.heads=x: must be a whole number, found 'x'\n"
            "--set model.heeds=4: unknown key 'model.heeds' (did you mean 'model.heads'?)\n"
            "--set modle.width=4: unknown key 'modle.width' (did you mean 'model.width'?)\n"
            "--set train=4: unknown key 'train' (did you mean 'data.train'?)\n"
            "--set layers: an override is section.key=value\n"
            "--set model.kv_heads=0x2: must be a whole number, found '0x2'; write 2\n"
            "--set steps=5: unknown key 'steps' (did you mean 'train.steps'?)\n"
            "--set optimizer.lr=[1: not valid YAML: end of sequence flow not found\n"
            "--set run.seed=: must be a whole number, found ''\n"
            "--set optimiser.lr=1: unknown key 'optimiser.lr' (did you mean 'optimizer.lr'?)\n"
            "--set run.name=null: has no value\n"
            "--set data.train={a: b}: must be a text, found a map\n"
            "--set model.lr=4: unknown key 'model.lr' (did you mean 'optimizer.lr'?)\n"
            "--set zzz.zzz=4: unknown key 'zzz.zzz' (a key is section.key, as in model.heads)");
}

}  // namespace
}  // namespace hyperslab::deck::test
