// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "hyperslab/train/config.hpp"

namespace hyperslab::deck {

struct IntegerRange {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
/// "two", "three".
[[nodiscard]] constexpr std::string_view number_word(std::size_t number) {
  return number == 2 ? "two" : "three";
}
/// [least, most], without an end that is open.
struct RealRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool open_least = false;
  bool open_most = false;
};
/// "at least 1", "between 1 and 65536".
[[nodiscard]] std::string range_text(const IntegerRange& range);
/// "more than 0", "at least 0 and less than 1".
[[nodiscard]] std::string range_text(const RealRange& range);
[[nodiscard]] bool contains(const RealRange& range, double value);

/// Bounds that keep products of sizes inside 64 bits.
inline constexpr std::int64_t kMostRanks = 65536;
inline constexpr std::int64_t kMostSize = 1 << 24;
inline constexpr std::int64_t kMostLayers = 4096;  // a plan of as many takes seconds
inline constexpr std::int64_t kMostSteps = 1'000'000'000'000;
inline constexpr std::int64_t kMostThreads = 1024;
inline constexpr std::int64_t kMostPadding = 1024;  // pixels
inline constexpr std::int64_t kMostRepeats = 1024;
inline constexpr std::int64_t kMostOperations = 8;  // RandAugment operations for each image
inline constexpr std::int64_t kMostMagnitude = 30;  // RandAugment magnitude
inline constexpr IntegerRange kRanks = {1, kMostRanks};
inline constexpr IntegerRange kSize = {1, kMostSize};
inline constexpr IntegerRange kSizeOrDefault = {0, kMostSize};
inline constexpr IntegerRange kIdOrNone = {-1, std::numeric_limits<std::int32_t>::max() - 1};
inline constexpr IntegerRange kId = {0, std::numeric_limits<std::int32_t>::max() - 1};
inline constexpr IntegerRange kSteps = {0, kMostSteps};
inline constexpr RealRange kPositive = {.least = 0, .open_least = true};
inline constexpr RealRange kNotNegative = {.least = 0};
inline constexpr RealRange kUpToMillion = {.least = 0, .most = 1e6};
inline constexpr RealRange kFraction = {.least = 0, .most = 1};
inline constexpr RealRange kPositiveFraction = {.least = 0, .most = 1, .open_least = true};
inline constexpr RealRange kUpToHalf = {.least = 0, .most = 0.5};
inline constexpr RealRange kBelowOne = {.least = 0, .most = 1, .open_most = true};

template <class Enum>
using Name = std::pair<std::string_view, Enum>;

inline constexpr std::array<Name<model::QkNorm>, 3> kQkNorms = {{
    {"none", model::QkNorm::none},
    {"head", model::QkNorm::head},
    {"width", model::QkNorm::width},
}};
inline constexpr std::array<Name<nn::InitRule>, 2> kInitRules = {{
    {"normal", nn::InitRule::normal},
    {"xavier", nn::InitRule::xavier},
}};
inline constexpr std::array<Name<nn::DropPathRule>, 2> kDropPathRules = {{
    {"linear", nn::DropPathRule::linear},
    {"constant", nn::DropPathRule::constant},
}};
inline constexpr std::array<Name<model::RopeScaling>, 4> kRopeScalings = {{
    {"none", model::RopeScaling::none},
    {"linear", model::RopeScaling::linear},
    {"llama3", model::RopeScaling::llama3},
    {"yarn", model::RopeScaling::yarn},
}};
inline constexpr std::array<Name<model::Position>, 5> kPositions = {{
    {"learned", model::Position::learned},
    {"sinusoidal", model::Position::sinusoidal},
    {"rope", model::Position::rope},
    {"none", model::Position::none},
    {"sincos2d", model::Position::sincos2d},
}};
inline constexpr std::array<Name<model::Pooling>, 2> kPoolings = {{
    {"token", model::Pooling::token},
    {"mean", model::Pooling::mean},
}};
inline constexpr std::array<Name<io::BrokenImages>, 2> kBrokenImages = {{
    {"refuse", io::BrokenImages::refuse},
    {"skip", io::BrokenImages::skip},
}};
inline constexpr std::array<Name<io::Documents>, 2> kDocuments = {{
    {"joined", io::Documents::joined},
    {"masked", io::Documents::masked},
}};
inline constexpr std::array<Name<io::DecodeOn>, 3> kDecodeOn = {{
    {"auto", io::DecodeOn::automatic},
    {"cpu", io::DecodeOn::cpu},
    {"gpu", io::DecodeOn::gpu},
}};
inline constexpr std::array<Name<image::Crop>, 3> kCrops = {{
    {"resized", image::Crop::resized},
    {"padded", image::Crop::padded},
    {"center", image::Crop::center},
}};
inline constexpr std::array<Name<image::Interpolation>, 2> kInterpolations = {{
    {"bilinear", image::Interpolation::bilinear},
    {"bicubic", image::Interpolation::bicubic},
}};
inline constexpr std::array<Name<image::MixMode>, 2> kMixModes = {{
    {"pair", image::MixMode::pair},
    {"batch", image::MixMode::batch},
}};
inline constexpr std::array<Name<image::Policy>, 4> kPolicies = {{
    {"none", image::Policy::none},
    {"randaugment", image::Policy::randaugment},
    {"autoaugment-cifar10", image::Policy::autoaugment_cifar10},
    {"autoaugment-imagenet", image::Policy::autoaugment_imagenet},
}};
inline constexpr std::array<Name<ops::NormKind>, 3> kNorms = {{
    {"layernorm", ops::NormKind::layernorm},
    {"rmsnorm", ops::NormKind::rmsnorm},
    {"none", ops::NormKind::none},
}};
inline constexpr std::array<Name<model::NormPlace>, 4> kNormPlaces = {{
    {"pre", model::NormPlace::pre},
    {"post", model::NormPlace::post},
    {"sandwich", model::NormPlace::sandwich},
    {"post_sublayer", model::NormPlace::post_sublayer},
}};
inline constexpr std::array<Name<model::AttentionPath>, 4> kAttentionPaths = {{
    {"auto", model::AttentionPath::automatic},
    {"cudnn", model::AttentionPath::cudnn},
    {"fused", model::AttentionPath::fused},
    {"reference", model::AttentionPath::reference},
}};

/// Names that the enumeration's own module gives.
template <class Enum, std::size_t N>
[[nodiscard]] constexpr std::array<Name<Enum>, N> names_by_module(const std::array<Enum, N>& all) {
  std::array<Name<Enum>, N> table;
  for (std::size_t i = 0; i < N; ++i) table[i] = {name_of(all[i]), all[i]};
  return table;
}
inline constexpr auto kFamilies =
    names_by_module(std::array{model::Family::gpt2, model::Family::llama, model::Family::vit});
inline constexpr auto kPrecisions =
    names_by_module(std::array{Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16});
inline constexpr auto kGradientPrecisions =
    names_by_module(std::array{Precision::fp32, Precision::bf16});
inline constexpr auto kGemmPrecisions =
    names_by_module(std::array{train::GemmPrecision::compute, train::GemmPrecision::fp8_tensor,
                               train::GemmPrecision::fp8_row, train::GemmPrecision::fp8_block});
inline constexpr auto kActivations = names_by_module(ops::kActivations);
inline constexpr auto kRecomputes = names_by_module(nn::kRecomputes);
inline constexpr auto kPipelineSchedules = names_by_module(mesh::kTrainingSchedules);
inline constexpr auto kSamplings =
    names_by_module(std::array{io::Sampling::blocks, io::Sampling::windows});
inline constexpr auto kPackings = names_by_module(
    std::array{io::Packing::contiguous, io::Packing::document, io::Packing::best_fit});
inline constexpr std::array<Name<io::RawIds>, 2> kRawIds = {{
    {"uint16", io::RawIds::uint16},
    {"uint32", io::RawIds::uint32},
}};
inline constexpr std::array<Name<train::DeviceChoice>, 3> kDevices = {{
    {"auto", train::DeviceChoice::automatic},
    {"cpu", train::DeviceChoice::cpu},
    {"cuda", train::DeviceChoice::cuda},
}};
inline constexpr std::array<Name<train::CheckLinks>, 3> kCheckLinks = {{
    {"auto", train::CheckLinks::automatic},
    {"always", train::CheckLinks::always},
    {"never", train::CheckLinks::never},
}};
inline constexpr auto kOptimizers = [] {
  std::array<Name<optim::OptimizerKind>, optim::kOptimizerTraits.size()> names{};
  std::ranges::transform(optim::kOptimizerTraits, names.begin(),
                         [](const optim::OptimizerTraits& traits) {
                           return Name<optim::OptimizerKind>{traits.name, traits.kind};
                         });
  return names;
}();
inline constexpr auto kStates = names_by_module(optim::kStateKinds);
inline constexpr auto kHomes = names_by_module(std::array{Home::device, Home::host});
inline constexpr auto kStorageFormats = names_by_module(param::kStorageFormats);
inline constexpr std::array<Name<train::WeightBits>, 3> kWeightBits = {{
    {"none", train::WeightBits::none},
    {"int8", train::WeightBits::int8},
    {"int4", train::WeightBits::int4},
}};
inline constexpr std::array<Name<ops::ActivationFormat>, 2> kActivationFormats = {{
    {"none", ops::ActivationFormat::none},
    {"dynamic-int8", ops::ActivationFormat::dynamic_int8},
}};
inline constexpr std::array<Name<train::SpikePolicy>, 4> kSpikePolicies = {{
    {"ignore", train::SpikePolicy::ignore},
    {"log", train::SpikePolicy::log},
    {"skip", train::SpikePolicy::skip},
    {"roll_back", train::SpikePolicy::roll_back},
}};
inline constexpr auto kAdapterTargets = names_by_module(nn::kAdapterTargets);
/// Those that decks may name: no model of today has a router, and adapters have a section.
inline constexpr std::array<Name<param::Role>, 5> kRoles = {{
    {"matrix", param::Role::matrix},
    {"embedding", param::Role::embedding},
    {"head", param::Role::head},
    {"norm", param::Role::norm},
    {"bias", param::Role::bias},
}};

inline constexpr std::array<Name<optim::ScheduleKind>, 4> kSchedules = {{
    {"constant", optim::ScheduleKind::constant},
    {"linear", optim::ScheduleKind::linear},
    {"cosine", optim::ScheduleKind::cosine},
    {"wsd", optim::ScheduleKind::wsd},
}};

/// Every key of a deck, once: readers, writers and tables of decks visit this description. A
/// visitor has
///   section(name)
///   named(key, enum, table)             one of the names in the table
///   text(key, string)                   not empty
///   maybe_text(key, string)             null or empty: the default
///   flag(key, bool), integer(key, integer, range), real(key, double, range)
///   named_list(key, enums, table)       a list of them
///   texts(key, strings), integers(key, integers, range)
///   reals(key, array or vector, range)
///   keep(key, integer)                  a number from 2, or `all`
///   resume(key, choice)                 auto, never or a step
/// `config` is a train::Config, const for visitors that only look.
template <class Visitor, class Config>
void visit_run(Visitor& v, Config& config) {
  auto& run = config.run;
  v.section("run");
  v.text("name", run.name);
  v.maybe_text("directory", run.directory);
  v.integer("seed", run.seed, IntegerRange{.least = 0});
  v.named("device", run.device, kDevices);
  v.flag("deterministic", run.deterministic);
  v.real("hang_timeout_seconds", run.hang_timeout_seconds, kNotNegative);
  v.real("walltime_minutes", run.walltime_minutes, kNotNegative);
  v.named("check_links", run.check_links, kCheckLinks);
  v.maybe_text("machine", run.machine);
  v.flag("tensorboard", run.tensorboard);
  v.integer("compare_replicas_every", run.compare_replicas_every, kSteps);
}

template <class Visitor, class Config>
void visit_model(Visitor& v, Config& config) {
  auto& spec = config.model;
  v.section("model");
  v.named("family", spec.family, kFamilies);
  v.integer("layers", spec.layers, IntegerRange{1, kMostLayers});
  v.integer("width", spec.width, kSize);
  v.integer("heads", spec.heads, kSize);
  v.integer("kv_heads", spec.kv_heads, kSizeOrDefault);
  v.integer("head_width", spec.own_head_width, kSizeOrDefault);
  v.integer("ffn_width", spec.ffn_width, kSizeOrDefault);
  v.integer("vocabulary", spec.vocabulary, IntegerRange{2, std::numeric_limits<int>::max()});
  v.integer("context", spec.context, kSize);
  v.integer("image", spec.image.size, kSizeOrDefault);
  v.integer("patch", spec.image.patch, kSizeOrDefault);
  v.integer("channels", spec.image.channels, IntegerRange{1, 3});
  v.integer("classes", spec.image.classes, kSizeOrDefault);
  v.named("pooling", spec.image.pooling, kPoolings);
  v.named("position", spec.position, kPositions);
  v.real("rope_theta", spec.rope.theta, kPositive);
  v.real("rotary_fraction", spec.rope.fraction, kPositiveFraction);
  v.named("rope_scaling", spec.rope.scaling, kRopeScalings);
  v.real("rope_factor", spec.rope.factor, kPositive);
  v.integer("rope_original_context", spec.rope.original_context, kSizeOrDefault);
  v.real("rope_low_factor", spec.rope.low_factor, kPositive);
  v.real("rope_high_factor", spec.rope.high_factor, kPositive);
  v.real("rope_beta_fast", spec.rope.beta_fast, kPositive);
  v.real("rope_beta_slow", spec.rope.beta_slow, kPositive);
  v.real("rope_attention_factor", spec.rope.attention_factor, kNotNegative);
  v.real("rope_local_theta", spec.rope_local_theta, kNotNegative);
  v.real("embedding_scale", spec.embedding_scale, kUpToMillion);
  v.named("norm", spec.norm, kNorms);
  v.named("norm_place", spec.norm_place, kNormPlaces);
  v.real("norm_eps", spec.norm_eps, kPositive);
  v.flag("parallel_block", spec.parallel_block);
  v.named("activation", spec.activation, kActivations);
  v.flag("bias", spec.bias);
  v.flag("qkv_bias", spec.qkv_bias);
  v.flag("unbiased_qkv", spec.unbiased_qkv);
  v.named("qk_norm", spec.qk_norm, kQkNorms);
  v.flag("tie_embeddings", spec.tie_embeddings);
  v.real("dropout", spec.dropout, kBelowOne);
  v.real("drop_path", spec.drop_path, kBelowOne);
  v.named("drop_path_rule", spec.drop_path_rule, kDropPathRules);
  v.real("label_smoothing", spec.label_smoothing, kBelowOne);
  v.named("attention", spec.attention, kAttentionPaths);
  v.integer("window", spec.scores.window, kSizeOrDefault);
  v.integer("window_full_every", spec.scores.full_every, kSizeOrDefault);
  v.integer("window_first_layer", spec.scores.first_windowed, kSizeOrDefault);
  v.real("attention_scale", spec.scores.scale, kNotNegative);
  v.real("attention_softcap", spec.scores.softcap, kNotNegative);
  v.flag("attention_sinks", spec.scores.sinks);
  v.real("logit_softcap", spec.logit_softcap, kNotNegative);
  v.named("init", spec.init, kInitRules);
  v.real("init_std", spec.init_std, kPositive);
  v.real("position_std", spec.position_std, kNotNegative);
  v.flag("scale_residual_init", spec.scale_residual_init);
  v.integer("mup_base_width", spec.mup_base_width, kSizeOrDefault);
  v.integer("mup_base_head_width", spec.mup_base_head_width, kSizeOrDefault);
  v.named("frozen_format", spec.frozen_format, kStorageFormats);
  v.integer("bos_token", spec.bos_token, kIdOrNone);
  v.integers("eos_tokens", spec.eos_tokens, kId);
}

template <class Visitor, class Config>
void visit_data(Visitor& v, Config& config) {
  auto& data = config.data;
  v.section("data");
  v.texts("train", data.train);
  v.texts("validation", data.validation);
  v.reals("weights", data.weights, kNotNegative);
  v.integers("weight_steps", data.weight_steps, IntegerRange{2, kMostSteps});
  v.named("sampling", data.sampling, kSamplings);
  v.named("dtype", data.dtype, kRawIds);
  v.maybe_text("vocabulary", data.vocabulary);
  v.integer("ignore_token", data.ignore_token, kIdOrNone);
  v.flag("join_files", data.join_files);
  v.flag("loss_mask", data.loss_mask);
  v.real("validation_fraction", data.validation_fraction, kUpToHalf);
  v.integer("end_token", data.end_token, kIdOrNone);
  v.named("documents", data.documents, kDocuments);
  v.named("packing", data.packing, kPackings);
  v.flag("predict_starts", data.predict_starts);
  v.named("broken_images", data.broken_images, kBrokenImages);
  v.named("decode", data.decode, kDecodeOn);
  v.integer("threads", data.threads, IntegerRange{0, kMostThreads});
}

template <class Visitor, class Config>
void visit_augment(Visitor& v, Config& config) {
  auto& augment = config.augment;
  v.section("augment");
  v.integer("repeats", augment.repeats, IntegerRange{1, kMostRepeats});
  v.named("crop", augment.crop, kCrops);
  v.reals("scale", augment.scale, kFraction);
  v.reals("ratio", augment.ratio, kPositive);
  v.integer("pad", augment.pad, IntegerRange{0, kMostPadding});
  v.named("interpolation", augment.interpolation, kInterpolations);
  v.real("validation_crop", augment.validation_crop, kPositiveFraction);
  v.real("flip", augment.flip, kFraction);
  v.named("policy", augment.policy, kPolicies);
  v.integer("policy_operations", augment.policy_operations, IntegerRange{1, kMostOperations});
  v.integer("policy_magnitude", augment.policy_magnitude, IntegerRange{0, kMostMagnitude});
  v.integer("policy_fill", augment.policy_fill, IntegerRange{0, 255});
  v.real("brightness", augment.brightness, kFraction);
  v.real("contrast", augment.contrast, kFraction);
  v.real("saturation", augment.saturation, kFraction);
  v.real("mixup", augment.mixup, kNotNegative);
  v.real("cutmix", augment.cutmix, kNotNegative);
  v.real("mix", augment.mix, kFraction);
  v.named("mix_mode", augment.mix_mode, kMixModes);
  v.real("mix_switch", augment.mix_switch, kFraction);
  v.real("erase", augment.erase, kFraction);
  v.reals("erase_area", augment.erase_area, kFraction);
  v.reals("erase_ratio", augment.erase_ratio, kPositive);
  v.reals("mean", augment.mean, kFraction);
  v.reals("deviation", augment.deviation, kPositive);
}

template <class Visitor, class Config>
void visit_layout(Visitor& v, Config& config) {
  auto& parallel = config.parallel;
  v.section("parallel");
  v.integer("data", parallel.data, kRanks);
  v.integer("tensor", parallel.tensor, kRanks);
  v.integer("pipeline", parallel.pipeline, kRanks);
  v.flag("sequence", parallel.sequence);
  v.named("schedule", parallel.schedule, kPipelineSchedules);
  v.integer("virtual_stages", parallel.virtual_stages, kRanks);
  v.integers("stage_layers", parallel.stage_layers, IntegerRange{0, kMostLayers});
  v.integer("zero", parallel.zero, IntegerRange{0, mesh::kMostZero});
  v.integer("shard", parallel.shard, IntegerRange{0, kMostRanks});
  v.real("bucket_mib", parallel.bucket_mib, kPositive);
  v.section("precision");
  v.named("compute", config.precision.compute, kPrecisions);
  v.named("gradients", config.precision.gradients, kGradientPrecisions);
  v.named("gemm", config.precision.gemm, kGemmPrecisions);
  v.integer("fp8_min_width", config.precision.fp8_min_width, kSize);
  v.integer("fp8_keep_first", config.precision.fp8_keep_first, IntegerRange{0, kMostLayers});
  v.integer("fp8_keep_last", config.precision.fp8_keep_last, IntegerRange{0, kMostLayers});
  v.flag("fp8_cache_weights", config.precision.fp8_cache_weights);
  v.flag("fp8_param_gather", config.precision.fp8_param_gather);
  v.section("memory");
  v.named("recompute", config.memory.recompute, kRecomputes);
  v.integer("recompute_layers", config.memory.recompute_layers, IntegerRange{0, kMostLayers});
  v.integer("loss_rows", config.memory.loss_rows, kSizeOrDefault);
  v.integer("mlp_rows", config.memory.mlp_rows, kSizeOrDefault);
  v.named("optimizer", config.memory.optimizer, kHomes);
  v.real("resident_gib", config.memory.resident_gib, kNotNegative);
}

template <class Visitor, class Config>
void visit_training(Visitor& v, Config& config) {
  auto& optimizer = config.optimizer;
  v.section("optimizer");
  v.named("name", optimizer.name, kOptimizers);
  v.real("lr", optimizer.lr, kPositive);
  v.reals("betas", optimizer.betas, kBelowOne);
  v.real("eps", optimizer.eps, kPositive);
  v.real("momentum", optimizer.momentum, kBelowOne);
  v.real("weight_decay", optimizer.weight_decay, kNotNegative);
  v.flag("decay_embeddings", optimizer.decay_embeddings);
  v.flag("decay_norms_and_biases", optimizer.decay_norms_and_biases);
  v.flag("cautious_decay", optimizer.cautious_decay);
  v.named("state", optimizer.state, kStates);
  v.real("clip_norm", optimizer.clip_norm, kNotNegative);
  v.real("ema_decay", optimizer.ema_decay, kBelowOne);
  v.integer("ema_start_step", optimizer.ema_start_step, kSteps);
  v.flag("evaluate_ema", optimizer.evaluate_ema);
  auto& schedule = config.schedule;
  v.section("schedule");
  v.named("name", schedule.name, kSchedules);
  v.integer("warmup_steps", schedule.warmup_steps, kSteps);
  v.real("final_fraction", schedule.final_fraction, kFraction);
  v.real("decay_fraction", schedule.decay_fraction, kFraction);
  auto& train = config.train;
  v.section("train");
  v.integer("steps", train.steps, kSteps);
  v.integer("epochs", train.epochs, kSteps);
  v.integer("global_batch", train.global_batch, kSize);
  v.integer("microbatch", train.microbatch, kSizeOrDefault);
  v.integer("validate_every", train.validate_every, kSteps);
  v.integer("validate_batches", train.validate_batches, kSteps);
  v.texts("tasks", train.tasks);
  v.integer("tasks_every", train.tasks_every, kSteps);
  v.real("z_loss", train.z_loss, kNotNegative);
  v.integer("sample_every", train.sample_every, kSteps);
  v.texts("sample_prompts", train.sample_prompts);
  v.integer("sample_tokens", train.sample_tokens, kSize);
  v.real("sample_temperature", train.sample_temperature, kNotNegative);
  v.integer("log_norms", train.log_norms, kSteps);
  v.integer("log_every", train.log_every, IntegerRange{1, kMostSteps});
  v.flag("overfit_one_batch", train.overfit_one_batch);
  v.named_list("trainable", train.trainable, kRoles);
}

template <class Visitor, class Config>
void visit_adapter(Visitor& v, Config& config) {
  auto& adapter = config.adapter;
  v.section("adapter");
  v.integer("rank", adapter.rank, kSizeOrDefault);
  v.real("alpha", adapter.alpha, kPositive);
  v.flag("rank_scaled", adapter.rank_scaled);
  v.named_list("targets", adapter.targets, kAdapterTargets);
  v.real("dropout", adapter.dropout, kBelowOne);
}

template <class Visitor, class Config>
void visit_quantization(Visitor& v, Config& config) {
  auto& quantization = config.quantization;
  v.section("quantization");
  v.named("weights", quantization.weights, kWeightBits);
  v.integer("group", quantization.group, IntegerRange{2, kMostSize});
  v.named("activations", quantization.activations, kActivationFormats);
  v.flag("embeddings", quantization.embeddings);
  v.flag("head", quantization.head);
  v.integer("after", quantization.after, kSteps);
}

template <class Visitor, class Config>
void visit_records(Visitor& v, Config& config) {
  auto& checkpoint = config.checkpoint;
  v.section("checkpoint");
  v.maybe_text("directory", checkpoint.directory);
  v.maybe_text("initial", checkpoint.initial);
  v.flag("new_head", checkpoint.new_head);
  v.integer("every", checkpoint.every, kSteps);
  v.flag("final", checkpoint.final);
  v.keep("keep", checkpoint.keep);
  v.integer("keep_every", checkpoint.keep_every, kSteps);
  v.flag("async", checkpoint.async);
  v.integer("max_failures", checkpoint.max_failures, IntegerRange{1, kMostSteps});
  v.integer("memory_every", checkpoint.memory_every, kSteps);
  v.text("memory_directory", checkpoint.memory_directory);
  v.resume("resume", checkpoint.resume);
  auto& timing = config.timing;
  v.section("timing");
  v.integer("every", timing.every, IntegerRange{1, kMostSteps});
  v.integers("trace_steps", timing.trace_steps, IntegerRange{1, kMostSteps});
  v.flag("groups", timing.groups);
}

template <class Visitor, class Config>
void visit_spikes(Visitor& v, Config& config) {
  v.section("spikes");
  v.named("policy", config.spikes.policy, kSpikePolicies);
  v.integer("window", config.spikes.window, IntegerRange{2, kMostSteps});
  v.real("z_score", config.spikes.z_score, kPositive);
  v.integer("warmup_steps", config.spikes.warmup, IntegerRange{2, kMostSteps});
  v.integer("max_roll_backs", config.spikes.max_roll_backs, kSteps);
}

template <class Visitor, class Config>
void visit_keys(Visitor& v, Config& config) {
  visit_run(v, config);
  visit_model(v, config);
  visit_data(v, config);
  visit_augment(v, config);
  visit_layout(v, config);
  visit_training(v, config);
  visit_adapter(v, config);
  visit_quantization(v, config);
  visit_records(v, config);
  visit_spikes(v, config);
}

}  // namespace hyperslab::deck
