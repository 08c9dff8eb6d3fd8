// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

/// Every key with a value that is not its default, so that a swapped field shows.
constexpr const char* kEveryKey = R"(
run: {name: all-keys, directory: out/here, seed: 7, device: cpu, deterministic: true}
model:
  scale_residual_init: false
  mup_base_width: 20
  mup_base_head_width: 5
  init_std: 0.03
  attention: reference
  dropout: 0.125
  tie_embeddings: true
  bias: true
  activation: relu_squared
  norm_eps: 1.0e-4
  norm_place: post
  norm: layernorm
  rope_theta: 500.5
  embedding_scale: 2.5
  bos_token: 299
  eos_tokens: [300, 4]
  position: none
  context: 17
  vocabulary: 301
  ffn_width: 72
  kv_heads: 3
  heads: 6
  width: 60
  layers: 5
  family: llama
data: {train: [a.bin, b/*.npy], validation: [c.h5], sampling: windows, dtype: uint32,
       vocabulary: vocab/dir, ignore_token: 6, join_files: true, loss_mask: true, token_weights: true, validation_fraction: 0, end_token: 8}
parallel: {data: 2, tensor: 1, pipeline: 1, context: 1, sequence: false, schedule: gpipe, virtual_stages: 1,
           zero: 0, bucket_mib: 2.5}
precision: {compute: fp32}
memory: {recompute: none}
optimizer: {name: adamw, lr: 1.5e-3, betas: [0.8, 0.99], eps: 1.0e-6, momentum: 0.8, weight_decay: 0.05,
            decay_embeddings: false, decay_norms_and_biases: true, cautious_decay: true, state: bf16, clip_norm: 2,
            ema_decay: 0.75, ema_start_step: 25, evaluate_ema: true}
schedule: {name: wsd, warmup_steps: 11, final_fraction: 0.25, decay_fraction: 0.375}
train: {steps: 101, epochs: 0, global_batch: 24, microbatch: 3, validate_every: 12,
        validate_batches: 13, tasks: [t.jsonl, arc], tasks_every: 9, sample_every: 10, sample_prompts: [Once, a b],
        sample_tokens: 31, sample_temperature: 0.5, loss: clipped, clip_low: 0.1, clip_high: 0.3, kl_weight: 0.02,
        preference_beta: 0.4, teacher_weight: 0.75, teacher_tokens: 0, z_loss: 1.0e-4, log_norms: 14, log_every: 15, overfit_one_batch: true, trainable: [norm, bias]}
adapter: {alpha: 8, rank_scaled: true}
quantization: {group: 32, after: 21}
checkpoint: {directory: scratch/ckpt, initial: other/ckpt, every: 16, final: false, keep: 4, keep_every: 32,
             async: true, max_failures: 5, memory_every: 6, memory_directory: /mem, resume: 48}
timing: {every: 18, trace_steps: [19, 20], groups: true}
spikes: {policy: roll_back, window: 22, z_score: 4.5, warmup_steps: 23, max_roll_backs: 24}
)";

constexpr Surroundings kTwoRanks = {.ranks = 2};

TEST(Fields, RunAndModel) {
  const auto config = read(kEveryKey, {}, kTwoRanks);

  EXPECT_EQ(config.run,
            (train::RunConfig{"all-keys", "out/here", 7, train::DeviceChoice::cpu, true}));
  const model::ModelSpec expected = {.family = model::Family::llama,
                                     .layers = 5,
                                     .width = 60,
                                     .heads = 6,
                                     .kv_heads = 3,
                                     .ffn_width = 72,
                                     .vocabulary = 301,
                                     .context = 17,
                                     .position = model::Position::none,
                                     .rope = {.theta = 500.5},
                                     .embedding_scale = 2.5,
                                     .norm = ops::NormKind::layernorm,
                                     .norm_place = model::NormPlace::post,
                                     .norm_eps = 1e-4,
                                     .activation = ops::Activation::relu_squared,
                                     .bias = true,
                                     .tie_embeddings = true,
                                     .dropout = 0.125,
                                     .attention = model::AttentionPath::reference,
                                     .init_std = 0.03,
                                     .scale_residual_init = false,
                                     .mup_base_width = 20,
                                     .mup_base_head_width = 5,
                                     .bos_token = 299,
                                     .eos_tokens = {300, 4}};
  EXPECT_EQ(config.model, expected);
}

TEST(Fields, DataAndLayout) {
  const auto config = read(kEveryKey, {}, kTwoRanks);

  EXPECT_EQ(config.data, (io::DataConfig{{"a.bin", "b/*.npy"},
                                         {"c.h5"},
                                         {},
                                         {},
                                         io::Sampling::windows,
                                         io::RawIds::uint32,
                                         "vocab/dir",
                                         6,
                                         true,
                                         true,
                                         true,
                                         0,
                                         8}));
  const auto split =
      read(kEveryKey, {"data.validation=[]", "data.validation_fraction=0.25"}, kTwoRanks);
  EXPECT_EQ(split.data.validation_fraction, 0.25);
  EXPECT_EQ(config.parallel,
            (mesh::ParallelConfig{2, 1, 1, 1, false, mesh::Schedule::gpipe, 1, {}, 0, 2.5}));
  EXPECT_EQ(config.precision.compute, Precision::fp32);
  EXPECT_EQ(config.memory.recompute, nn::Recompute::none);
}

TEST(Fields, AdaptersAndQuantization) {
  const auto config = read(kValid, {"adapter.rank=8", "adapter.dropout=0.25", "model.width=64",
                                    "adapter.targets=[attention.query,mlp.down]",
                                    "model.ffn_width=128", "model.frozen_format=nf4"});
  EXPECT_EQ(
      config.adapter,
      (nn::AdapterConfig{8, 16, false, {nn::AdapterTarget::query, nn::AdapterTarget::down}, 0.25}));
  EXPECT_EQ(config.model.frozen_format, param::StorageFormat::nf4);
  const auto integer =
      read(kValid, {"quantization.weights=int8", "quantization.activations=dynamic-int8"});
  EXPECT_EQ(integer.quantization, (train::QuantizationConfig{train::WeightBits::int8, 64,
                                                             ops::ActivationFormat::dynamic_int8}));
  const auto tables =
      read(kValid,
           {"quantization.weights=int8", "quantization.embeddings=true", "quantization.head=true"},
           {.for_training = false});
  EXPECT_TRUE(tables.quantization.embeddings && tables.quantization.head);
}

TEST(Fields, Layouts) {
  const std::string layout =
      "parallel: {data: 1, tensor: 2, pipeline: 2, sequence: true, schedule: interleaved, "
      "virtual_stages: 2, stage_layers: [0, 1, 1, 0], zero: 1, bucket_mib: 3}\n"
      "memory: {recompute: selective}\n";

  const auto config = read(layout + kValid, {"train.microbatch=2"}, {.ranks = 4});

  EXPECT_EQ(
      config.parallel,
      (mesh::ParallelConfig{1, 2, 2, 1, true, mesh::Schedule::interleaved, 2, {0, 1, 1, 0}, 1, 3}));
  EXPECT_EQ(config.memory.recompute, nn::Recompute::selective);
}

TEST(Fields, OptimizerScheduleAndTraining) {
  const auto config = read(kEveryKey, {}, kTwoRanks);

  EXPECT_EQ(config.optimizer, (optim::OptimizerConfig{optim::OptimizerKind::adamw,
                                                      1.5e-3,
                                                      {0.8, 0.99},
                                                      1e-6,
                                                      0.8,
                                                      0.05,
                                                      false,
                                                      true,
                                                      true,
                                                      optim::StateKind::bf16,
                                                      2,
                                                      0.75,
                                                      25,
                                                      true}));
  EXPECT_EQ(config.schedule, (optim::ScheduleConfig{optim::ScheduleKind::wsd, 11, 0.25, 0.375}));
  EXPECT_EQ(config.train, (train::TrainConfig{101,
                                              0,
                                              24,
                                              3,
                                              12,
                                              13,
                                              {"t.jsonl", "arc"},
                                              9,
                                              10,
                                              {"Once", "a b"},
                                              31,
                                              0.5,
                                              train::Loss::clipped,
                                              0.1,
                                              0.3,
                                              0.02,
                                              0.4,
                                              0.75,
                                              0,
                                              1e-4,
                                              14,
                                              15,
                                              true,
                                              {param::Role::norm, param::Role::bias}}));
  EXPECT_EQ(config.microbatches(), 4);
  EXPECT_EQ(read(kEveryKey, {"train.steps=0", "train.epochs=3"}, kTwoRanks).train.epochs, 3);
}

TEST(Fields, CheckpointAndTiming) {
  const auto config = read(kEveryKey, {}, kTwoRanks);

  EXPECT_EQ(config.checkpoint,
            (io::CheckpointConfig{"scratch/ckpt", 16, false, 4, 32, true, 5, 6, "/mem",
                                  io::ResumeChoice{io::ResumeFrom::step, 48}, "other/ckpt"}));
  EXPECT_EQ(config.adapter, (nn::AdapterConfig{0, 8, true}));
  EXPECT_EQ(config.quantization, (train::QuantizationConfig{train::WeightBits::none, 32,
                                                            ops::ActivationFormat::none, 21}));
  EXPECT_EQ(config.timing, (io::TimingConfig{18, {19, 20}, true}));
  EXPECT_EQ(config.spikes, (train::SpikeConfig{train::SpikePolicy::roll_back, 22, 4.5, 23, 24}));
  EXPECT_EQ(
      read(kEveryKey, {"run.compare_replicas_every=25"}, kTwoRanks).run.compare_replicas_every, 25);
}

TEST(Fields, EveryNameOfAChoiceIsTaken) {
  for (const auto* setting :
       {"model.family=gpt2",      "model.position=learned",  "model.position=sinusoidal",
        "model.position=rope",    "model.norm=rmsnorm",      "model.norm=none",
        "model.norm_place=pre",   "model.activation=gelu",   "model.activation=gelu_tanh",
        "model.activation=relu",  "model.activation=silu",   "model.activation=swiglu",
        "model.activation=geglu", "model.attention=auto",    "model.attention=fused",
        "data.sampling=blocks",   "data.dtype=uint16",       "schedule.name=constant",
        "schedule.name=linear",   "schedule.name=cosine",    "parallel.schedule=1f1b",
        "checkpoint.resume=auto", "checkpoint.resume=never", "checkpoint.keep=all",
        "run.device=auto"}) {
    const std::string text = setting;
    const auto dot = text.find('.');
    const auto equals = text.find('=');
    const auto line =
        "  " + text.substr(dot + 1, equals - dot - 1) + ": " + text.substr(equals + 1);

    const auto written = to_yaml(read(kValid, {text}));

    EXPECT_THAT(written, testing::HasSubstr("\n" + line + "\n"));
  }
}

TEST(Defaults, DerivedValuesAreResolved) {
  const auto config = read(kValid);

  EXPECT_EQ(config.run.directory, "runs/tiny");
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.ffn_width, 128);  // 8/3 of 48 is 128
  EXPECT_EQ(config.train.microbatch, 8);
  EXPECT_EQ(config.checkpoint.directory, "");
  EXPECT_EQ(config.checkpoint.initial, "");
  EXPECT_EQ(config.optimizer, optim::OptimizerConfig{});
}

TEST(Defaults, ScaleOfEmbeddings) {
  EXPECT_EQ(read(kValid).model.embedding_scale, 1);
  EXPECT_EQ(read(kValid, {"model.position=learned"}).model.embedding_scale, 1);
  const auto sinusoidal = read(kValid, {"model.position=sinusoidal", "model.width=64"});
  EXPECT_EQ(sinusoidal.model.embedding_scale, 8);  // the root of the width
  const auto of_base = read(kValid, {"model.position=sinusoidal", "model.mup_base_width=16"});
  EXPECT_EQ(of_base.model.embedding_scale, 4);
  EXPECT_EQ(
      read(kValid, {"model.position=sinusoidal", "model.embedding_scale=1"}).model.embedding_scale,
      1);
}

TEST(Defaults, FeedForwardWidths) {
  EXPECT_EQ(read(kValid, {"model.width=56"}).model.ffn_width, 192);  // 149.3 up to 3 x 64
  EXPECT_EQ(read(kValid, {"model.family=gpt2"}).model.ffn_width, 192);
  EXPECT_EQ(read(kValid, {"model.activation=relu"}).model.ffn_width, 192);
}

TEST(Defaults, MicrobatchIsTheShareOfADataRank) {
  const auto config = read(kValid, {"parallel.data=4"}, {.ranks = 4});

  EXPECT_EQ(config.train.microbatch, 2);
}

TEST(Defaults, FamilyGivesTheDefaultsWhereverItStands) {
  const auto last = with(with(kValid, "  family: llama\n", ""), "context: 16",
                         "context: 16\n  bias: true\n  family: llama");

  const auto config = read(last);

  auto expected = read(kValid).model;
  expected.bias = true;
  EXPECT_EQ(config.model, expected);
}

TEST(Defaults, EmptySectionsAndByteOrderMarksAndWindowsLineEndsAreTaken) {
  std::string dos = "\xEF\xBB\xBF";
  for (const char c : kValid + "optimizer:\n")
    dos += c == '\n' ? std::string("\r\n") : std::string(1, c);

  EXPECT_EQ(read(dos), read(kValid));
}

TEST(Defaults, ScalarsStandForListsOfOne) {
  const auto config = read(with(kValid, "[synthetic]", "synthetic\ntiming: {trace_steps: 3}"));

  EXPECT_EQ(config.data.train, std::vector<std::string>{"synthetic"});
  EXPECT_EQ(config.timing.trace_steps, std::vector<std::int64_t>{3});
}

}  // namespace
}  // namespace hyperslab::deck::test
