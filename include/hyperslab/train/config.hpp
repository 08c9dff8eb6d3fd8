// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/core/precision.hpp"
#include "hyperslab/image/augment_config.hpp"
#include "hyperslab/io/config.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/nn/adapter_config.hpp"
#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/nn/fp8_config.hpp"
#include "hyperslab/nn/recompute.hpp"
#include "hyperslab/optim/config.hpp"
#include "hyperslab/param/spec.hpp"

namespace hyperslab::train {

/// `automatic`: a GPU if the process sees one.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// Choice to time groups and ranks before the first step; `automatic`: on GPUs.
enum class CheckLinks : std::uint8_t { automatic, always, never };

/// Deck section `run`.
struct RunConfig {
  std::string name = "run";
  std::string directory;  ///< empty: runs/<name>
  std::uint64_t seed = 1234;
  DeviceChoice device = DeviceChoice::automatic;
  bool deterministic = false;
  double hang_timeout_seconds = 600;  ///< without any progress; 0: no watchdog
  double walltime_minutes = 0;        ///< limit of this start, from the process' beginning; 0: none
  CheckLinks check_links = CheckLinks::automatic;
  std::string machine = {};  ///< machine file that measured links are compared with; empty: none
  bool tensorboard = false;  ///< write the metrics for TensorBoard, too
  std::int64_t compare_replicas_every =
      0;  ///< steps between sums of values that ranks hold alike; 0: none
  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

/// Format in which the blocks' linear layers multiply: the rest's format, or 8-bit floats with a
/// scale a tensor, a row or a block.
enum class GemmPrecision : std::uint8_t { compute, fp8_tensor, fp8_row, fp8_block };
[[nodiscard]] constexpr std::string_view name_of(GemmPrecision precision) {
  switch (precision) {
    case GemmPrecision::compute: return "compute";
    case GemmPrecision::fp8_tensor: return "fp8_tensor";
    case GemmPrecision::fp8_row: return "fp8_row";
    case GemmPrecision::fp8_block: return "fp8_block";
  }
  return "";
}

/// Deck section `precision`.
struct PrecisionConfig {
  Precision compute = Precision::fp32;
  Precision gradients = Precision::fp32;  ///< parameters' gradients: fp32 or bf16
  GemmPrecision gemm = GemmPrecision::compute;
  std::int64_t fp8_min_width = 2048;  ///< least width of linear layers that multiply in fp8
  std::int64_t fp8_keep_first = 0;    ///< blocks that do not
  std::int64_t fp8_keep_last = 0;     ///< likewise, from the end
  bool fp8_cache_weights = false;     ///< weights are rounded once a step and kept
  bool fp8_param_gather = false;      ///< data ranks gather FP8 values of weights

  /// Settings for the model's layers.
  [[nodiscard]] nn::Fp8Config fp8() const {
    nn::Fp8Config config;
    if (gemm == GemmPrecision::fp8_tensor) config.recipe = nn::Fp8Recipe::tensor;
    if (gemm == GemmPrecision::fp8_row) config.recipe = nn::Fp8Recipe::row;
    if (gemm == GemmPrecision::fp8_block) config.recipe = nn::Fp8Recipe::block;
    config.min_width = fp8_min_width;
    config.keep_first = static_cast<int>(fp8_keep_first);
    config.keep_last = static_cast<int>(fp8_keep_last);
    config.caches_weights = fp8_cache_weights;
    config.gathers_fp8 = fp8_param_gather;
    return config;
  }
  friend bool operator==(const PrecisionConfig&, const PrecisionConfig&) = default;
};

/// Deck section `memory`.
struct MemoryConfig {
  nn::Recompute recompute = nn::Recompute::none;
  std::int64_t recompute_layers = 0;  ///< blocks of a rank, with Recompute::full; 0: all
  Home activations = Home::device;    ///< memory of the inputs of blocks computed again
  std::int64_t host_layers = 0;       ///< blocks of a rank with inputs on the host; 0: all
  Home optimizer = Home::device;      ///< memory of masters and optimizer state
  double resident_gib = 0;            ///< state on the host that stays on the rank's device, too
  std::int64_t loss_rows = 0;         ///< most rows whose logits exist at once; 0: as many as fit
  std::int64_t mlp_rows = 0;          ///< most rows of a piece of a feed-forward network; 0: all
  friend bool operator==(const MemoryConfig&, const MemoryConfig&) = default;
};

/// The loss of training: ops::TokenObjective, a teacher's distribution, or pairs of answers.
enum class Loss : std::uint8_t { cross_entropy, clipped, preference, distillation };

/// Deck section `train`.
struct TrainConfig {
  std::int64_t steps = 0;  ///< exactly one of steps and epochs is given
  std::int64_t epochs = 0;
  std::int64_t global_batch = 0;      ///< samples
  std::int64_t microbatch = 0;        ///< samples; 0 in the deck: global_batch / data ranks
  std::int64_t validate_every = 0;    ///< steps; 0: only at the end
  std::int64_t validate_batches = 0;  ///< batches of global_batch samples; 0: the whole file once
  std::vector<std::string> tasks;     ///< task files that the model is scored on
  std::int64_t tasks_every = 0;       ///< steps between scores; 0: only at the end
  std::int64_t sample_every = 0;      ///< steps between texts that the model generates; 0: never
  std::vector<std::string> sample_prompts;  ///< that it continues; none: it begins a document
  std::int64_t sample_tokens = 64;          ///< that it adds to each at most
  double sample_temperature = 1;            ///< 0: the likeliest token
  Loss loss = Loss::cross_entropy;
  double clip_low = 0.2;            ///< a clipped loss keeps ratios above 1 - clip_low
  double clip_high = 0.2;           ///< and below 1 + clip_high
  double kl_weight = 0;             ///< factor of the divergence from the reference, added to it
  double preference_beta = 0.1;     ///< factor of a pair's margin
  double teacher_weight = 0.5;      ///< share of the divergence from the teacher in the loss
  std::int64_t teacher_tokens = 0;  ///< likely tokens of the teacher that files give
  double z_loss = 0;                ///< factor of log(Z)^2, added to the loss
  std::int64_t log_norms = 0;       ///< steps between records; 0: never
  std::int64_t log_every = 10;      ///< steps between plain log lines
  bool overfit_one_batch = false;
  std::vector<param::Role> trainable = {};  ///< the others are frozen; empty: all are trained
  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

/// The format of quantized matrices; none: they are not quantized.
enum class WeightBits : std::uint8_t { none, int8, int4 };

/// Deck section `quantization`: training with fake quantization, or a model that was quantized.
struct QuantizationConfig {
  WeightBits weights = WeightBits::none;
  std::int64_t group = 64;  ///< columns that share a scale, with int4
  ops::ActivationFormat activations = ops::ActivationFormat::none;
  std::int64_t after = 0;   ///< steps that are trained without it
  bool embeddings = false;  ///< true if the table of tokens is quantized, too
  bool head = false;        ///< true if the head is; a tied table is both
  [[nodiscard]] explicit operator bool() const { return weights != WeightBits::none; }
  [[nodiscard]] param::QuantizationSpec spec() const {
    const bool is_int8 = weights == WeightBits::int8;
    return {is_int8 ? ops::WeightFormat::int8 : ops::WeightFormat::int4, group, activations};
  }
  friend bool operator==(const QuantizationConfig&, const QuantizationConfig&) = default;
};

/// Reaction to a step whose loss or gradient norm is far above those before.
enum class SpikePolicy : std::uint8_t { ignore, log, skip, roll_back };

/// Deck section `spikes`.
struct SpikeConfig {
  SpikePolicy policy = SpikePolicy::log;
  std::int64_t window = 128;        ///< steps over which mean and variance are weighted
  double z_score = 6;               ///< standard deviations above the mean that make a spike
  std::int64_t warmup = 128;        ///< steps that are only observed
  std::int64_t max_roll_backs = 8;  ///< most rollbacks of a run; one more ends it
  friend bool operator==(const SpikeConfig&, const SpikeConfig&) = default;
};

/// A whole deck: the plain structs of the modules.
struct Config {
  RunConfig run;
  model::ModelSpec model;
  io::DataConfig data;
  mesh::ParallelConfig parallel;
  PrecisionConfig precision;
  MemoryConfig memory;
  optim::OptimizerConfig optimizer;
  optim::ScheduleConfig schedule;
  TrainConfig train;
  io::CheckpointConfig checkpoint;
  io::TimingConfig timing;
  nn::AdapterConfig adapter;
  QuantizationConfig quantization;
  SpikeConfig spikes;
  image::AugmentConfig augment;

  /// True if a trainer keeps a key-value cache for samples; on other layouts they are refused.
  [[nodiscard]] bool samples_text() const {
    return train.sample_every > 0 && parallel.pipeline == 1 && !cuts_rows() &&
           !model.is_of_images();
  }
  /// True if ranks of a tensor group share the rows of the residual stream.
  [[nodiscard]] bool cuts_rows() const { return parallel.sequence && parallel.tensor > 1; }
  /// Microbatches of one rank in one step.
  [[nodiscard]] std::int64_t microbatches() const {
    return train.global_batch / (train.microbatch * parallel.data);
  }
  /// Columns that files need for training, or for evaluation alone.
  [[nodiscard]] TokenColumns token_columns(bool training = true) const {
    if (!training) return {.weight = data.token_weights};
    const bool clipped = train.loss == Loss::clipped;
    return {.weight = data.token_weights,
            .old_log_probability = clipped,
            .advantage = clipped,
            .reference_log_probability =
                (clipped && train.kl_weight > 0) || train.loss == Loss::preference,
            .teachers = train.loss == Loss::distillation ? train.teacher_tokens : 0};
  }
  /// The loss from these columns.
  [[nodiscard]] nn::HeadLoss head_loss(bool training) const {
    const TokenColumns columns = token_columns(training);
    nn::HeadLoss loss;
    loss.columns = columns;
    loss.target.weight = columns.at(TokenColumn::weight);
    loss.target.old_log_probability = columns.at(TokenColumn::old_log_probability);
    loss.target.advantage = columns.at(TokenColumn::advantage);
    loss.target.reference = columns.at(TokenColumn::reference_log_probability);
    loss.target.first_teacher = columns.first_teacher();
    loss.target.teachers = static_cast<int>(columns.teachers);
    loss.target.teacher_weight = static_cast<float>(train.teacher_weight);
    loss.target.clip_low = static_cast<float>(train.clip_low);
    loss.target.clip_high = static_cast<float>(train.clip_high);
    loss.target.kl_weight = static_cast<float>(train.kl_weight);
    if (columns.advantage) loss.target.objective = ops::TokenObjective::clipped;
    loss.of_pairs = train.loss == Loss::preference && columns.reference_log_probability;
    loss.beta = static_cast<float>(train.preference_beta);
    return loss;
  }
  /// Groups that are needed besides the axes' groups, and the choice to time them.
  [[nodiscard]] mesh::GroupNeeds groups() const {
    const auto heads = static_cast<int>(model.kv_heads);
    return {model.tie_embeddings, parallel.tensor > heads ? parallel.tensor / heads : 1,
            timing.groups};
  }
  friend bool operator==(const Config&, const Config&) = default;
};

/// Tables that are quantized besides the blocks' matrices; a tied one is both.
struct RoundedTables {
  bool embeddings = false;
  bool head = false;
};
[[nodiscard]] inline RoundedTables rounded_tables(const Config& config) {
  const QuantizationConfig& asked = config.quantization;
  const bool tied = config.model.tie_embeddings;
  return {asked.embeddings || (tied && asked.head), asked.head || (tied && asked.embeddings)};
}

}  // namespace hyperslab::train
