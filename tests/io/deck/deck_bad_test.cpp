// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

struct BadDeck {
  std::string from;  ///< of kValid; empty: `to` is the whole deck
  std::string to;
  std::string message;
  friend std::ostream& operator<<(std::ostream& out, const BadDeck& deck) { return out << deck.to; }
};

class Refuses : public testing::TestWithParam<BadDeck> {};

TEST_P(Refuses, WithThisMessage) {
  const auto& [from, to, message] = GetParam();

  EXPECT_EQ(refusal(from.empty() ? to : with(kValid, from, to)), message);
}

INSTANTIATE_TEST_SUITE_P(
    Text, Refuses,
    testing::Values(
        BadDeck{"", "", "deck.yaml:1:1: the deck is empty"},
        BadDeck{"", "# nothing but this\n", "deck.yaml:1:1: the deck is empty"},
        BadDeck{"", "---\n", "deck.yaml:1:1: the deck is empty"},
        BadDeck{"", "hello\n",
                "deck.yaml:1:1: a deck is a map of the sections run, model, experts, data, "
                "augment, parallel, "
                "precision, memory, optimizer, schedule, train, adapter, quantization, checkpoint, "
                "timing or spikes"},
        BadDeck{"tiny", "t\xFCny",
                "deck.yaml:2:10: byte 0xFC is not UTF-8 text; save the deck as UTF-8"},
        BadDeck{"tiny", std::string("t\0ny", 4),
                "deck.yaml:2:10: byte 0x00 is not UTF-8 text; save the deck as UTF-8"},
        BadDeck{"  name: tiny", " \tname: tiny",
                "deck.yaml:2:2: a tab indents this line; YAML wants blanks"},
        BadDeck{"[synthetic]", "[synthetic",
                "deck.yaml:11:11: a value must stand on one line\n"
                "deck.yaml:12:6: not valid YAML: end of sequence flow not found"},
        BadDeck{"steps: 10", "steps: 10: 20", "deck.yaml:13:12: not valid YAML: illegal map value"},
        BadDeck{"steps: 10", "steps: 10\t: 20",
                "deck.yaml:13:13: not valid YAML: illegal map value; this line has a tab: write "
                "blanks"},
        BadDeck{"tiny", "\"tiny",
                "deck.yaml:2:9: a quoted text must end on the line where it starts"},
        BadDeck{"tiny", "'it''s\n  tiny'",
                "deck.yaml:2:9: a quoted text must end on the line where it starts"},
        BadDeck{"tiny", "tiny\n    model", "deck.yaml:2:9: a value must stand on one line"},
        BadDeck{"tiny", "|\n    tiny", "deck.yaml:2:9: block texts (| and >) are not supported"},
        BadDeck{"[synthetic]", "[a,\n  \"b.bin\n\"]",
                "deck.yaml:12:3: a quoted text must end on the line where it starts"},
        BadDeck{"  global_batch: 8\n", "  global_batch: 8\n---\nrun: {}\n",
                "deck.yaml:16:1: a second YAML document; a deck is only one"},
        BadDeck{"  global_batch: 8\n", "  global_batch: 8\n%TAG\n",
                "deck.yaml:15:1: YAML directives (%...) are not supported; delete the line"},
        BadDeck{"layers: 2", "layers: &two 2\n  kv_heads: *two",
                "deck.yaml:5:11: anchors (&name) are not supported; leave the anchor out\n"
                "deck.yaml:6:13: aliases (*name) are not supported; write the value out"},
        BadDeck{"layers: 2", "layers: !!int 2",
                "deck.yaml:5:11: tags (!!name) are not supported; leave the tag out"},
        BadDeck{"  layers: 2", "  ? [a, b]\n  : 3\n  layers: 2",
                "deck.yaml:5:5: a key must be a plain word"}));

INSTANTIATE_TEST_SUITE_P(
    Keys, Refuses,
    testing::Values(
        BadDeck{"heads: 4", "heeds: 4",
                "deck.yaml:7:3: model.heeds: unknown key 'heeds' (did you mean 'heads'?)"},
        BadDeck{"heads: 4", "heads: 4\n  norm_plac: pre",
                "deck.yaml:8:3: model.norm_plac: unknown key 'norm_plac' (did you mean "
                "'norm_place'?)"},
        BadDeck{"data:", "schedule: {warmup: 3}\ndata:",
                "deck.yaml:10:12: schedule.warmup: unknown key 'warmup' (did you mean "
                "'warmup_steps'?)"},
        BadDeck{"heads: 4", "heads: 4\n  global_batch: 8",
                "deck.yaml:8:3: model.global_batch: unknown key 'global_batch' (did you mean "
                "'train.global_batch'?)"},
        BadDeck{"name: tiny", "name: tiny\n  colour: red",
                "deck.yaml:3:3: run.colour: unknown key 'colour' (known are name, directory, seed, "
                "device, deterministic, hang_timeout_seconds, walltime_minutes, check_links, "
                "machine, tensorboard or compare_replicas_every)"},
        BadDeck{
            "data:", "dta:", "deck.yaml:10:1: dta: unknown section 'dta' (did you mean 'data'?)"},
        BadDeck{"data:", "<<: {a: 1}\ndata:",
                "deck.yaml:10:1: <<: unknown section '<<' (known are run, model, experts, data, "
                "augment, "
                "parallel, "
                "precision, memory, optimizer, schedule, train, adapter, quantization, checkpoint, "
                "timing or spikes)"},
        BadDeck{"heads: 4", "heads: 4\n  width: 96",
                "deck.yaml:8:3: model.width: given twice, on line 6 and on line 8; delete one"},
        BadDeck{"train:\n  steps: 10", "run: {seed: 3}\ntrain:\n  steps: 10",
                "deck.yaml:12:1: run: given twice, on line 1 and on line 12; delete one"},
        BadDeck{"  layers: 2\n", "", "deck.yaml:3:1: model.layers: is missing and has no default"},
        BadDeck{"run:\n  name: tiny", "run: tiny",
                "deck.yaml:1:1: run: must be a map of keys, found 'tiny'"},
        BadDeck{"run:\n  name: tiny", "run: [tiny]",
                "deck.yaml:1:1: run: must be a map of keys, found a list"}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, Refuses,
    testing::Values(
        BadDeck{"steps: 10", "steps: 010",
                "deck.yaml:13:10: train.steps: '010' has a leading zero and looks octal; write 10"},
        BadDeck{"layers: 2", "layers: 4097",
                "deck.yaml:5:11: model.layers: must be between 1 and 4096, found 4097"},
        BadDeck{"steps: 10", "steps: 1e3",
                "deck.yaml:13:10: train.steps: must be a whole number, found '1e3'; write 1000"},
        BadDeck{"steps: 10", "steps: 1_000",
                "deck.yaml:13:10: train.steps: must be a whole number, found '1_000'; write 1000"},
        BadDeck{"steps: 10", "steps: 0x10",
                "deck.yaml:13:10: train.steps: must be a whole number, found '0x10'; write 16"},
        BadDeck{"steps: 10", "steps: 0o17",
                "deck.yaml:13:10: train.steps: must be a whole number, found '0o17'; write 15"},
        BadDeck{"steps: 10", "steps: 10.0",
                "deck.yaml:13:10: train.steps: must be a whole number, found '10.0'; write 10"},
        BadDeck{"steps: 10", "steps: 10.5",
                "deck.yaml:13:10: train.steps: must be a whole number, found '10.5'"},
        BadDeck{"steps: 10", "steps: .nan",
                "deck.yaml:13:10: train.steps: must be a whole number, found '.nan'"},
        BadDeck{"steps: 10", "steps: \"10\"",
                "deck.yaml:13:10: train.steps: must be a whole number, found the text \"10\"; "
                "leave the quotes out"},
        BadDeck{"steps: 10", "steps: ten",
                "deck.yaml:13:10: train.steps: must be a whole number, found 'ten'"},
        BadDeck{"steps: 10", "steps: [10]",
                "deck.yaml:13:10: train.steps: must be a whole number, found a list"},
        BadDeck{"steps: 10", "steps:", "deck.yaml:13:3: train.steps: has no value"},
        BadDeck{"steps: 10", "steps: -10",
                "deck.yaml:13:10: train.steps: must be between 0 and 1000000000000, found -10"},
        BadDeck{"steps: 10", "steps: 99999999999999999999",
                "deck.yaml:13:10: train.steps: '99999999999999999999' does not fit into 64 bits"},
        BadDeck{"name: tiny", "seed: -1", "deck.yaml:2:9: run.seed: must be at least 0, found -1"},
        BadDeck{"vocabulary: 300", "vocabulary: 1",
                "deck.yaml:8:15: model.vocabulary: must be between 2 and 2147483647, found 1"},
        BadDeck{"context: 16", "context: 0",
                "deck.yaml:9:12: model.context: must be between 1 and 16777216, found 0"},
        BadDeck{"data:", "optimizer: {lr: 0}\ndata:",
                "deck.yaml:10:17: optimizer.lr: must be more than 0, found 0"},
        BadDeck{"data:", "optimizer: {lr: .inf}\ndata:",
                "deck.yaml:10:17: optimizer.lr: must be a finite number, found '.inf'"},
        BadDeck{"data:", "optimizer: {lr: nan}\ndata:",
                "deck.yaml:10:17: optimizer.lr: must be a finite number, found 'nan'"},
        BadDeck{"data:", "optimizer: {lr: 1e999}\ndata:",
                "deck.yaml:10:17: optimizer.lr: '1e999' is out of the range of a double"},
        BadDeck{"data:", "optimizer: {lr: 03e-4}\ndata:",
                "deck.yaml:10:17: optimizer.lr: '03e-4' has a leading zero and looks octal; write "
                "3e-4"},
        BadDeck{"data:", "optimizer: {betas: [0.9, 1]}\ndata:",
                "deck.yaml:10:26: optimizer.betas: must be at least 0 and less than 1, found 1"},
        BadDeck{"data:", "optimizer: {betas: [0.9]}\ndata:",
                "deck.yaml:10:20: optimizer.betas: must be a list of two numbers, found a list of "
                "1"},
        BadDeck{"data:", "optimizer: {betas: 0.9}\ndata:",
                "deck.yaml:10:20: optimizer.betas: must be a list of two numbers, found '0.9'"},
        BadDeck{"data:", "schedule: {final_fraction: 1.5}\ndata:",
                "deck.yaml:10:28: schedule.final_fraction: must be at least 0 and at most 1, found "
                "1.5"},
        BadDeck{"layers: 2", "layers: 2\n  dropout: 1",
                "deck.yaml:6:12: model.dropout: must be at least 0 and less than 1, found 1"},
        BadDeck{"data:", "timing: {trace_steps: [1, 0]}\ndata:",
                "deck.yaml:10:27: timing.trace_steps: must be between 1 and 1000000000000, found "
                "0"}));

INSTANTIATE_TEST_SUITE_P(
    Words, Refuses,
    testing::Values(
        BadDeck{
            "llama", "lama",
            "deck.yaml:4:11: model.family: must be gpt2, llama or vit, found 'lama' (did you mean "
            "'llama'?)"},
        BadDeck{"layers: 2", "layers: 2\n  position: alibi",
                "deck.yaml:6:13: model.position: must be learned, sinusoidal, rope, none or "
                "sincos2d, found "
                "'alibi'"},
        BadDeck{"layers: 2", "layers: 2\n  bias: yes",
                "deck.yaml:6:9: model.bias: must be true or false, found 'yes'"},
        BadDeck{"layers: 2", "layers: 2\n  bias: \"true\"",
                "deck.yaml:6:9: model.bias: must be true or false, found the text \"true\""},
        BadDeck{"name: tiny", "name: {a: 1}",
                "deck.yaml:2:9: run.name: must be a text, found a map"},
        BadDeck{"name: tiny", "name: \"\"", "deck.yaml:2:9: run.name: must not be empty"},
        BadDeck{"name: tiny", "name: \"a\\nb\"",
                "deck.yaml:2:9: run.name: must be one line of UTF-8 text without control "
                "characters"},
        BadDeck{"[synthetic]", "[a.bin, [b.bin]]",
                "deck.yaml:11:18: data.train: must be a text, found a list"},
        BadDeck{"[synthetic]", "[a.bin, \"\"]",
                "deck.yaml:11:18: data.train: must not hold an empty text"},
        BadDeck{"data:", "checkpoint: {keep: 1}\ndata:",
                "deck.yaml:10:20: checkpoint.keep: must be between 2 and 1000000000000, found 1; "
                "to keep every checkpoint write all"},
        BadDeck{"data:", "checkpoint: {resume: newest}\ndata:",
                "deck.yaml:10:22: checkpoint.resume: must be auto, never or a step, found "
                "'newest'"}));

TEST(Refuses, AllProblemsAtOnceSortedByLine) {
  const auto deck = with(with(with(kValid, "steps: 10", "steps: 1e1"), "heads: 4", "heads: 5"),
                         "name: tiny", "nmae: tiny");

  EXPECT_EQ(refusal(deck, {"optimizer.lr=fast", "parallel.data=2"}),
            "deck.yaml:2:3: run.nmae: unknown key 'nmae' (did you mean 'name'?)\n"
            "deck.yaml:7:3: model.heads: 5 heads do not divide width 48; nearest: 4 or 6\n"
            "deck.yaml:13:10: train.steps: must be a whole number, found '1e1'; write 10\n"
            "--set optimizer.lr=fast: must be a finite number, found 'fast'\n"
            "--set parallel.data=2: needs 2 ranks (2 x 1 x 1, data x tensor x pipeline), 1 was "
            "started; start 2 (mpirun -np 2 hyperslab ...) or set parallel.data to 1");
}

TEST(Refuses, ShowsFiftyProblemsAtMost) {
  std::string deck = kValid + "timing:\n  trace_steps: [0";
  for (int i = 1; i < 3000; ++i) deck += ", 0";

  const auto report = refusal(deck + "]\n");

  EXPECT_EQ(std::ranges::count(report, '\n'), 50);
  EXPECT_TRUE(report.ends_with("\n... and 2950 more")) << report;
}

TEST(Refuses, DeepNestingByName) {
  const auto report = refusal("run: " + std::string(100'000, '[') + "\n");

  EXPECT_NE(report.find("nested too deeply; a deck is a map of sections"), std::string::npos)
      << report;
}

TEST(Refuses, ABadKeyDoesNotCauseFurtherComplaints) {
  const auto deck = with(kValid, "heads: 4", "heads: 0\n  kv_heads: 3");

  EXPECT_EQ(refusal(deck), "deck.yaml:7:10: model.heads: must be between 1 and 16777216, found 0");
}

TEST(Refuses, ReportsAreOneLineEach) {
  const auto deck = with(kValid, "name: tiny", "name: tiny\n  \"a\\nb\": 1");

  EXPECT_EQ(refusal(deck),
            "deck.yaml:3:3: run.a b: unknown key 'a b' (known are name, directory, seed, device, "
            "deterministic, hang_timeout_seconds, walltime_minutes, check_links, machine, "
            "tensorboard or compare_replicas_every)");
}

}  // namespace
}  // namespace hyperslab::deck::test
