// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "schema_names.hpp"

namespace hyperslab::deck {

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
}

template <class Visitor, class Config>
void visit_positions(Visitor& v, Config& config) {
  auto& spec = config.model;
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
}

template <class Visitor, class Config>
void visit_layers(Visitor& v, Config& config) {
  auto& spec = config.model;
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
}

template <class Visitor, class Config>
void visit_attention(Visitor& v, Config& config) {
  auto& spec = config.model;
  v.named("attention", spec.attention, kAttentionPaths);
  v.integer("window", spec.scores.window, kSizeOrDefault);
  v.integer("window_full_every", spec.scores.full_every, kSizeOrDefault);
  v.integer("window_first_layer", spec.scores.first_windowed, kSizeOrDefault);
  v.real("attention_scale", spec.scores.scale, kNotNegative);
  v.real("attention_softcap", spec.scores.softcap, kNotNegative);
  v.flag("attention_sinks", spec.scores.sinks);
  v.real("logit_softcap", spec.logit_softcap, kNotNegative);
}

template <class Visitor, class Config>
void visit_initialization(Visitor& v, Config& config) {
  auto& spec = config.model;
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
void visit_experts(Visitor& v, Config& config) {
  auto& experts = config.model.experts;
  v.section("experts");
  v.integer("count", experts.count, IntegerRange{0, kMostExperts});
  v.integer("active", experts.active, IntegerRange{1, kMostExperts});
  v.integer("width", experts.width, kSizeOrDefault);
  v.integer("shared", experts.shared, IntegerRange{0, kMostExperts});
  v.integer("every", experts.every, IntegerRange{1, kMostLayers});
  v.integer("first_dense", experts.first_dense, IntegerRange{0, kMostLayers});
  v.named("score", experts.score, kRouterScoreNames);
  v.flag("normalize", experts.normalize);
  v.real("scale", experts.scale, kPositive);
  v.integer("groups", experts.groups, IntegerRange{1, kMostExperts});
  v.integer("group_active", experts.active_groups, IntegerRange{1, kMostExperts});
  v.named("balance", experts.balance, kBalanceNames);
  v.integer("balance_samples", experts.balance_samples, IntegerRange{1, kMostSize});
  v.real("balance_weight", experts.balance_weight, kNotNegative);
  v.real("bias_rate", experts.bias_rate, kNotNegative);
  v.real("z_weight", experts.z_weight, kNotNegative);
  v.flag("in_turn", experts.in_turn);
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
  v.flag("token_weights", data.token_weights);
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
  v.integer("context", parallel.context, kRanks);
  v.integer("expert", parallel.expert, kRanks);
  v.named("expert_exchange", parallel.expert_exchange, kExchangeKinds);
  v.real("expert_rows", parallel.expert_rows, kExpertRows);
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
  v.named("activations", config.memory.activations, kHomes);
  v.integer("host_layers", config.memory.host_layers, IntegerRange{0, kMostLayers});
  v.named("optimizer", config.memory.optimizer, kHomes);
  v.real("resident_gib", config.memory.resident_gib, kNotNegative);
}

template <class Visitor, class Config>
void visit_optimizer(Visitor& v, Config& config) {
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
}

template <class Visitor, class Config>
void visit_steps(Visitor& v, Config& config) {
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
  v.named("loss", train.loss, kLosses);
  v.real("clip_low", train.clip_low, kBelowOne);
  v.real("clip_high", train.clip_high, kNotNegative);
  v.real("kl_weight", train.kl_weight, kNotNegative);
  v.real("preference_beta", train.preference_beta, kPositive);
  v.real("teacher_weight", train.teacher_weight, kFraction);
  v.integer("teacher_tokens", train.teacher_tokens, IntegerRange{0, ops::kMostTeachers});
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
  visit_positions(v, config);
  visit_layers(v, config);
  visit_attention(v, config);
  visit_initialization(v, config);
  visit_experts(v, config);
  visit_data(v, config);
  visit_augment(v, config);
  visit_layout(v, config);
  visit_optimizer(v, config);
  visit_steps(v, config);
  visit_adapter(v, config);
  visit_quantization(v, config);
  visit_records(v, config);
  visit_spikes(v, config);
}

}  // namespace hyperslab::deck
