// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <ostream>

#include "broken_image_rules.hpp"
#include "broken_mixture_rules.hpp"
#include "broken_precision_rules.hpp"
#include "broken_rope_rules.hpp"
#include "broken_score_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

constexpr Surroundings kCpu = {};
constexpr Surroundings kTwoRanks = {.ranks = 2};
constexpr Surroundings kThreeRanks = {.ranks = 3};
constexpr Surroundings kFourRanks = {.ranks = 4};
constexpr Surroundings kSixRanks = {.ranks = 6};
constexpr Surroundings kTwelveRanks = {.ranks = 12};
constexpr Surroundings kGpu = {.has_cuda_device = true, .has_cuda_build = true};
constexpr Surroundings kNoBuild = {.has_cuda_device = true, .has_cuda_build = false};
constexpr Surroundings kNoDevice = {.has_cuda_device = false, .has_cuda_build = true};

struct BrokenRule {
  std::string key;
  std::string from;  ///< of kValid
  std::string to;
  Surroundings surroundings;
  std::string message;  ///< without file and key
  friend std::ostream& operator<<(std::ostream& out, const BrokenRule& rule) {
    return out << rule.to;
  }
};

const std::vector<BrokenRule>& broken_layout_rules() {
  static const std::vector<BrokenRule> all = {
      {"parallel.data", "data:", "parallel: {data: 4}\ndata:", kTwelveRanks,
       "10:12|needs 4 ranks (4 x 1 x 1, data x tensor x pipeline), 12 were started; start 4 or "
       "set parallel.data to 12"},
      {"train.tasks", "steps: 10", "steps: 10\n  tasks: [arc]", kCpu,
       "14:3|tasks are questions in text: set data.vocabulary to the vocabulary that made the "
       "token "
       "files (a folder, or bytes)"},
      {"train.tasks_every", "steps: 10", "steps: 10\n  tasks_every: 5", kCpu,
       "14:3|scores every 5 steps need task files: give train.tasks, or set it to 0"},
      {"train.validate_batches", "  train: [synthetic]",
       "  train: [synthetic]\n  validation: [synthetic]", kCpu,
       "13:1|0 means all of the validation tokens, and generated ones have no end: set it to 20, "
       "say"},
      {"parallel.tensor", "data:", "parallel: {tensor: 3}\ndata:", kThreeRanks,
       "10:12|3 ranks cannot share 4 heads; nearest: 2 or 4\ndeck.yaml:10:12: parallel.tensor: 3 "
       "ranks cannot share 4 key-value heads; nearest: 2 or 4\ndeck.yaml:10:12: parallel.tensor: "
       "3 ranks cannot share a feed-forward width of 128; nearest: 2 or 4"},
      {"parallel.tensor", "heads: 4\n  vocabulary: 300\n  context: 16\n",
       "heads: 12\n  kv_heads: 6\n  vocabulary: 300\n  context: 16\nparallel: {tensor: 4}\n",
       kFourRanks, "11:12|4 ranks cannot share 6 key-value heads; nearest: 3 or 6"},
      {"parallel.tensor", "heads: 4\n  vocabulary: 300\n  context: 16\n",
       "heads: 12\n  kv_heads: 4\n  ffn_width: 132\n  vocabulary: 300\n  context: 16\nparallel: "
       "{tensor: 6}\n",
       kSixRanks, "12:12|6 ranks cannot share 4 key-value heads; nearest: 4 or 8"},
      {"parallel.tensor", "heads: 4\n  vocabulary: 300\n  context: 16\n",
       "heads: 4\n  ffn_width: 66\n  vocabulary: 300\n  context: 16\nparallel: {tensor: 4}\n",
       kFourRanks, "11:12|4 ranks cannot share a feed-forward width of 66; nearest: 3 or 6"},
      {"parallel.sequence",
       "context: 16\ndata:\n  train: [synthetic]\ntrain:\n  steps: 10\n  global_batch: 8",
       "context: 15\nparallel: {sequence: true, tensor: 4}\ndata:\n  train: [synthetic]\ntrain:\n  "
       "steps: 10\n  global_batch: 2",
       kFourRanks,
       "10:12|4 ranks cannot share the 30 rows (samples x tokens) of a microbatch; nearest tensor: "
       "3 or 5"},
      {"parallel.pipeline", "data:", "parallel: {pipeline: 12}\ndata:", kTwelveRanks,
       "10:12|12 stages (12 x 1 virtual) are more than the 2 blocks, embedding and head; nearest: "
       "4"},
      {"parallel.stage_layers",
       "data:", "parallel: {pipeline: 2, stage_layers: [1, 2]}\ndata:", kTwoRanks,
       "10:25|expected 2 numbers that add up to 2, 0 only at the ends; found 2 that add up to 3; "
       "leave it out to cut by cost"},
      {"parallel.virtual_stages", "data:", "parallel: {virtual_stages: 2}\ndata:", kCpu,
       "10:12|2 virtual stages need schedule interleaved and a pipeline, found 1f1b with pipeline "
       "1; set it to 1"},
      {"parallel.schedule", "data:",
       "parallel: {schedule: interleaved, virtual_stages: 2, pipeline: 2}\ndata:", kTwoRanks,
       "10:12|interleaved sends microbatches in rounds of 2, and a step has 1; nearest "
       "train.global_batch: 16"},
      {"parallel.zero", "data:", "parallel: {zero: 2, pipeline: 2}\ndata:", kTwoRanks,
       "10:12|zero 2 sums gradients in every microbatch, 1 times a step, while a pipeline waits; "
       "nearest: 1"},
      {"parallel.zero", "data:", "parallel: {zero: 2, schedule: gpipe}\ndata:", kCpu,
       "10:12|zero 2 holds the gradients of two buckets at a time, and gpipe has more under way: "
       "set parallel.schedule to 1f1b; nearest: 1"},
  };
  return all;
}

const std::vector<BrokenRule>& broken_model_rules() {
  static const std::vector<BrokenRule> all = {
      {"model.heads", "heads: 4", "heads: 5", kCpu,
       "7:3|5 heads do not divide width 48; nearest: 4 or 6"},
      {"model.heads", "heads: 4", "heads: 16", kCpu,
       "7:3|rope turns pairs, and the head width 3 (48 / 16) is odd; nearest heads: 12 or 24"},
      {"model.width", "width: 48\n  heads: 4", "width: 45\n  heads: 5\n  position: sinusoidal",
       kCpu, "6:3|sinusoidal positions need an even width, found 45; nearest: 44 or 46"},
      {"model.kv_heads", "heads: 4", "heads: 4\n  kv_heads: 3", kCpu,
       "8:3|3 key-value heads do not divide 4 heads; nearest: 2 or 4"},
      {"model.norm_place", "heads: 4", "heads: 4\n  norm: none\n  norm_place: post", kCpu,
       "9:3|other places need a norm, and model.norm is none: set model.norm to layernorm or "
       "rmsnorm"},
      {"model.attention", "heads: 4", "heads: 4\n  attention: fused", kGpu,
       "8:3|the fused attention of a GPU takes bf16 or fp16 and head widths in multiples of 8 up "
       "to "
       "256, not fp32 with 12; set it to auto or reference"},
      {"model.attention", "heads: 4", "heads: 4\n  attention: cudnn", kNoBuild,
       "8:3|cudnn needs a GPU, and this run is on the CPU: set model.attention to auto, fused or "
       "reference"},
      {"model.vocabulary", "vocabulary: 300\n  context: 16\ndata:\n",
       "vocabulary: 256\n  context: 16\ndata:\n  vocabulary: bytes\n", kCpu,
       "8:3|data.vocabulary bytes has 257 ids (256 bytes and end of text), found 256; nearest: "
       "257"},
      {"run.name", "name: tiny", "name: runs/tiny", kCpu,
       "2:3|must be a file name, found 'runs/tiny'; a path goes into run.directory"},
      {"run.device", "name: tiny", "device: cuda", kNoBuild,
       "2:3|this program was built without CUDA (-DHYPERSLAB_CUDA=ON): set run.device to cpu or "
       "auto"},
      {"run.device", "name: tiny", "device: cuda", kNoDevice,
       "2:3|no CUDA device was found: set run.device to cpu or auto"},
      {"precision.compute", "data:", "precision: {compute: fp16}\ndata:", kNoDevice,
       "10:13|fp16 needs a GPU, and this run is on the CPU: set precision.compute to fp32 or bf16, "
       "or look at it without a GPU with plan --device cuda or train --dry-run"},
      {"memory.recompute",
       "data:", "parallel: {schedule: zero_bubble}\nmemory: {recompute: full}\ndata:", kCpu,
       "11:10|full computes activations again just before both parts of backward, and zero_bubble "
       "splits them: set memory.recompute to none, or parallel.schedule to 1f1b"},
      {"train.log_norms", "global_batch: 8", "global_batch: 8\n  log_norms: 5\nparallel: {zero: 1}",
       kCpu,
       "15:3|norms are logged only if every rank holds the whole model and its activations, not "
       "with "
       "tensor 1, pipeline 1, zero 1, recompute none; set it to 0"},
  };
  return all;
}

const std::vector<BrokenRule>& broken_run_rules() {
  static const std::vector<BrokenRule> all = {
      {"data.train", "  train: [synthetic]\n", "", kCpu,
       "10:1|training needs token files: give paths, globs or synthetic"},
      {"data.train", "[synthetic]", "[a.bin, synthetic]", kCpu,
       "11:3|synthetic stands alone; leave the other paths out"},
      {"data.validation", "[synthetic]", "synthetic\n  validation: [synthetic, a.bin]", kCpu,
       "12:3|synthetic stands alone; leave the other paths out"},
      {"train.steps", "  steps: 10\n", "", kCpu,
       "12:1|give train.steps or train.epochs, at least 1"},
      {"train.steps", "steps: 10", "steps: 10\n  epochs: 2", kCpu,
       "13:3|give one of train.steps (10) and train.epochs (2), not both"},
      {"train.global_batch", "global_batch: 8", "global_batch: 30\n  microbatch: 8", kCpu,
       "14:3|30 is no multiple of 8 (data 1 x microbatch 8); nearest: 24 or 32"},
      {"train.global_batch", "data:", "parallel: {data: 12}\ndata:", kTwelveRanks,
       "15:3|8 is no multiple of 12 data ranks; nearest: 12"},
      {"train.validate_every", "steps: 10", "steps: 10\n  validate_every: 5", kCpu,
       "14:3|validation every 5 steps needs data.validation: give paths or synthetic, or "
       "data.validation_fraction, or set train.validate_every to 0"},
      {"train.trainable", "steps: 10", "steps: 10\n  trainable: [bias]", kCpu,
       "14:3|the model has no parameter of these roles, so nothing would be trained; add matrix or "
       "embedding"},
      {"adapter.rank", "data:", "adapter: {targets: [mlp.up]}\ndata:", kCpu,
       "10:1|0 adds no adapters, and adapter.targets or adapter.dropout is given: set adapter.rank "
       "to 1 or more (16 is usual), or leave the others out"},
      {"adapter.rank", "global_batch: 8",
       "global_batch: 8\n  trainable: [norm]\nadapter: {rank: 4}", kCpu,
       "16:11|with adapters they alone are trained: leave train.trainable out, or set adapter.rank "
       "to 0"},
      {"adapter.targets", "context: 16",
       "context: 16\n  activation: relu\nadapter: {rank: 4, targets: [mlp.gate]}", kCpu,
       "11:20|mlp.gate is part of gated activations, which model.activation is not: leave it out, "
       "or set model.activation to swiglu or geglu"},
      {"model.frozen_format", "context: 16", "context: 16\n  frozen_format: int8", kCpu,
       "10:3|int8 is for a base that adapters are added to: set adapter.rank, or leave "
       "model.frozen_format out"},
      {"model.frozen_format", "context: 16",
       "context: 16\n  frozen_format: bf16\nadapter: {rank: 4}", kCpu,
       "10:3|products take operands of one dtype, and precision.compute is fp32: set "
       "model.frozen_format to compute, int8 or nf4"},
      {"quantization.group", "data:", "quantization: {weights: int4}\ndata:", kCpu,
       "10:1|groups of 64 do not divide the columns of the blocks' matrices on a rank, 48, 48 and "
       "128; take another group, an even one, or int8"},
      {"quantization.weights",
       "data:", "quantization: {weights: int8}\nadapter: {rank: 4}\ndata:", kCpu,
       "10:16|adapters leave the matrices as they are: store them in few bits with "
       "model.frozen_format, or set adapter.rank to 0"},
      {"quantization.weights", "global_batch: 8",
       "global_batch: 8\n  trainable: [norm]\nquantization: {weights: int8}", kCpu,
       "16:16|train.trainable leaves the matrices out, so that nothing learns from their rounding: "
       "add matrix to it, or set quantization.weights to none"},
      {"quantization.activations",
       "data:", "quantization: {weights: int4, group: 16, activations: dynamic-int8}\ndata:", kCpu,
       "10:42|products of integers need int8 on both sides: set quantization.weights to int8, or "
       "quantization.activations to none"},
      {"quantization.head", "data:", "quantization: {head: true}\ndata:", kCpu,
       "10:16|embeddings and head get the bits of quantization.weights, which is none: set it to "
       "int8 or int4, or leave quantization.embeddings and quantization.head out"},
      {"quantization.head", "data:", "quantization: {weights: int8, embeddings: true}\ndata:", kCpu,
       "10:1|fake quantization is of the blocks' matrices alone: leave quantization.embeddings and "
       "quantization.head out, and round them with checkpoint quantize --embeddings --head"},
      {"model.bos_token", "vocabulary: 300", "vocabulary: 300\n  bos_token: 300", kCpu,
       "9:3|300 is no id of the 300 of model.vocabulary; give one below, or -1 for none"},
      {"model.eos_tokens", "vocabulary: 300", "vocabulary: 300\n  eos_tokens: [1, 301]", kCpu,
       "9:3|301 is no id of the 300 of model.vocabulary; give ids below"},
      {"data.ignore_token", "[synthetic]", "[a.bin]\n  ignore_token: 300", kCpu,
       "12:3|300 is no id of the 300 of model.vocabulary; give one below, or -1 for none"},
      {"data.end_token", "[synthetic]", "[a.bin]\n  end_token: 301", kCpu,
       "12:3|301 is no id of the 300 of model.vocabulary; give one below, or -1 for none"},
      {"data.loss_mask", "[synthetic]", "[synthetic]\n  loss_mask: true", kCpu,
       "12:3|synthetic tokens have no loss mask: set data.loss_mask to false"},
      {"data.validation_fraction", "[synthetic]",
       "[a.h5]\n  validation: [b.h5]\n  validation_fraction: 0.125", kCpu,
       "13:3|0.125 of the training documents and data.validation cannot both be for validation; "
       "leave one out"},
      {"data.validation_fraction", "[synthetic]", "[synthetic]\n  validation_fraction: 0.125", kCpu,
       "12:3|synthetic tokens have no documents to split: set it to 0 and data.validation to "
       "synthetic"},
      {"schedule.warmup_steps", "data:", "schedule: {warmup_steps: 11}\ndata:", kCpu,
       "10:12|11 warm-up steps are more than the 10 steps of the run; nearest: 10"},
      {"schedule.decay_fraction",
       "data:", "schedule: {name: wsd, warmup_steps: 6, decay_fraction: 0.5}\ndata:", kCpu,
       "10:40|6 warm-up and 5 decay steps are more than the 10 steps of the run; nearest: 0.4"},
      {"checkpoint.memory_every",
       "data:", "checkpoint: {memory_every: 5, async: false}\ndata:", kCpu,
       "10:14|checkpoints in memory are written beside training: set checkpoint.async to true"},
      {"checkpoint.keep_every", "data:", "checkpoint: {every: 20, keep_every: 50}\ndata:", kCpu,
       "10:25|milestones are checkpoints, and 50 is no multiple of checkpoint.every 20; nearest: "
       "40 or 60"},
      {"checkpoint.keep_every", "data:", "checkpoint: {keep_every: 50}\ndata:", kCpu,
       "10:14|milestones need checkpoints: set checkpoint.every"},
  };
  return all;
}

const std::vector<BrokenRule>& broken_rules() {
  static const std::vector<BrokenRule> all = [] {
    std::vector<BrokenRule> joined;
    for (const auto* part : {&broken_layout_rules(), &broken_model_rules(), &broken_run_rules()}) {
      joined.insert(joined.end(), part->begin(), part->end());
    }
    return joined;
  }();
  return all;
}

class Rules : public testing::TestWithParam<BrokenRule> {};

TEST_P(Rules, SayTheNumbersAndTheNearestLegalValue) {
  const auto& [key, from, to, surroundings, message] = GetParam();
  const auto bar = message.find('|');
  const auto expected =
      "deck.yaml:" + message.substr(0, bar) + ": " + key + ": " + message.substr(bar + 1);

  EXPECT_EQ(refusal(with(kValid, from, to), {}, surroundings), expected);
}

INSTANTIATE_TEST_SUITE_P(Table, Rules, testing::ValuesIn(broken_rules()));

TEST(RulesTable, EveryRowHasATestThatBreaksIt) {
  std::map<std::string_view, int> rows;
  std::map<std::string_view, int> tests;
  for (const auto& rule : rules()) ++rows[rule.key];
  for (const auto& broken : broken_rules()) ++tests[broken.key];
  for (const auto& broken : broken_image_rules()) ++tests[broken.key];
  for (const auto& broken : broken_rope_rules()) ++tests[broken.key];
  for (const auto& broken : broken_score_rules()) ++tests[broken.key];
  for (const auto& broken : broken_precision_rules()) ++tests[broken.key];
  for (const auto& broken : broken_mixture_rules()) ++tests[broken.key];

  for (const auto& [key, count] : rows) EXPECT_GE(tests[key], count) << key;
}

TEST(RulesTable, AllKeysOfTheRowsAreKeysOfTheDeck) {
  const auto keys = keys_markdown("");

  for (const auto& rule : rules()) {
    EXPECT_THAT(keys, testing::HasSubstr("| `" + std::string(rule.key) + "` |"));
    std::string reads(rule.reads);
    while (!reads.empty()) {
      const auto blank = std::min(reads.find(' '), reads.size());
      EXPECT_THAT(keys, testing::HasSubstr("| `" + reads.substr(0, blank) + "` |")) << rule.key;
      reads.erase(0, blank + 1);
    }
  }
}

TEST(RulesTable, MarkdownHasARowPerRule) {
  const auto table = rules_table();

  EXPECT_EQ(std::ranges::count(table, '\n'), static_cast<long>(rules().size()) + 2);
  EXPECT_THAT(table, testing::HasSubstr("| `model.kv_heads` | divides model.heads |\n"));
}

TEST(Rules, GpuChoicesAreTakenOnAGpu) {
  const auto config =
      read(kValid,
           {"precision.compute=bf16", "model.attention=cudnn", "model.heads=6", "run.device=cuda"},
           kGpu);

  EXPECT_EQ(config.precision.compute, Precision::bf16);
  EXPECT_EQ(config.model.attention, model::AttentionPath::fused);
}

TEST(Rules, CpuOnAGpuMachineIsTheCpu) {
  EXPECT_EQ(read(kValid, {"precision.compute=bf16", "run.device=cpu"}, kGpu).precision.compute,
            Precision::bf16);
  EXPECT_EQ(
      refusal(kValid, {"precision.compute=fp16", "run.device=cpu"}, kGpu),
      "--set precision.compute=fp16: fp16 needs a GPU, and this run is on the CPU: set "
      "precision.compute to fp32 or bf16, or look at it without a GPU with plan --device cuda or "
      "train --dry-run");
}

TEST(Rules, APlanWasNotStarted) {
  EXPECT_EQ(refusal(kValid, {}, {.ranks = 3, .is_plan = true}),
            "deck.yaml:1:1: parallel.data: needs 1 ranks (1 x 1 x 1, data x tensor x pipeline), "
            "--ranks is 3; set it to 1 or set parallel.data to 3");
}

TEST(Rules, KeysThatAreNotUsedAreNotJudged) {
  const std::vector<std::string> overrides = {
      "data.train=[synthetic, a.bin]", "data.vocabulary=bytes", "model.vocabulary=200",
      "train.validate_every=5",        "train.steps=0",         "schedule.warmup_steps=99",
      "checkpoint.keep_every=3"};
  const Surroundings bench = {
      .unused = {"data.", "train.validate_", "train.steps", "schedule.", "checkpoint."}};

  EXPECT_NE(refusal(kValid, overrides), "accepted");
  EXPECT_EQ(refusal(kValid, overrides, bench), "accepted");
  EXPECT_THAT(refusal(kValid, {"data.sampling=x"}, bench), testing::HasSubstr("data.sampling=x"));
  EXPECT_THAT(refusal(kValid, {"model.heads=5"}, bench), testing::HasSubstr("do not divide"));
}

TEST(Rules, WithoutTrainingNoFilesStepsOrBatchAreNeeded) {
  const auto deck = kValid.substr(0, kValid.find("data:"));
  const Surroundings evaluation = {.ranks = 3, .for_training = false};

  const auto config = read(deck, {"parallel.data=3", "train.microbatch=2"}, evaluation);

  EXPECT_EQ(config.train.global_batch, 6);
  EXPECT_EQ(config.train.microbatch, 2);
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Docs, ShowTheTableOfRules) {
  const auto text = text_of(std::filesystem::path(HYPERSLAB_ROOT) / "docs/parallelism.md");

  EXPECT_NE(text.find(rules_table()), std::string::npos)
      << "docs/parallelism.md does not hold what `hyperslab --rules --markdown` prints: run "
         "jobs/docs.sh";
}

TEST(Docs, ShowTheKeysOfEverySection) {
  const auto text = text_of(std::filesystem::path(HYPERSLAB_ROOT) / "docs/decks.md");

  for (const auto& section : sections()) {
    EXPECT_NE(text.find(keys_markdown(section.name)), std::string::npos)
        << "docs/decks.md does not hold what `hyperslab --keys " << section.name
        << " --markdown` prints: run jobs/docs.sh";
  }
}

}  // namespace
}  // namespace hyperslab::deck::test
