// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/transformer.hpp"

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/attention.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {
namespace {

nn::PositionTable position_table(Position position) {
  switch (position) {
    case Position::learned: return nn::PositionTable::learned;
    case Position::sinusoidal: return nn::PositionTable::fixed;
    default: return nn::PositionTable::none;
  }
}

nn::EmbeddingConfig embedding_config(const ModelSpec& spec, const StageOptions& options) {
  nn::EmbeddingConfig config;
  config.vocabulary = spec.vocabulary;
  config.width = spec.width;
  config.context = spec.context;
  config.positions = position_table(spec.position);
  config.scale = static_cast<float>(spec.scale_of_embeddings());
  config.logit_scale = static_cast<float>(spec.parametrization().logit_factor());
  config.logit_softcap = static_cast<float>(spec.logit_softcap);
  config.z_loss = options.z_loss;
  config.loss = options.loss;
  config.dropout = static_cast<float>(spec.dropout);
  config.seed = options.seed;
  config.init_std = static_cast<float>(spec.init_std);
  config.tied = spec.tie_embeddings;
  config.group = options.tensor;
  config.context_group = options.context_group;
  config.vocabulary_split =
      nn::VocabularySplit(options.tensor, spec.vocabulary, options.vocabulary_multiple);
  return config;
}

/// Products of few rows multiply by values, which are old on data ranks that gather FP8 values.
void require_rows_for_fp8(const ModelSpec& spec, const StageOptions& options) {
  const Dim rows = options.B * options.T;
  if (rows >= nn::Fp8Product::kFewestRows) return;
  throw Error(ExitCode::usage, "precision.fp8_param_gather: a microbatch has " +
                                   std::to_string(rows) + " tokens, and products of fewer than " +
                                   std::to_string(nn::Fp8Product::kFewestRows) +
                                   " rows are not computed in 8-bit floats: make train.microbatch" +
                                   (spec.is_of_images() ? "" : " or model.context") +
                                   " larger, or set precision.fp8_param_gather to false");
}

}  // namespace

nn::BlockConfig block_config(const ModelSpec& spec, const StageOptions& options,
                             ops::AttentionMask mask) {
  nn::BlockConfig config = block_sizes(spec, mask);
  config.keep_probabilities =
      spec.attention == AttentionPath::reference ||
      (spec.attention == AttentionPath::automatic && !options.fused_attention);
  config.seed = options.seed;
  config.group = options.tensor;
  config.context_group = options.context_group;
  config.expert_group = options.expert_group;
  config.mlp_rows = options.mlp_rows;
  config.recompute = options.training ? options.recompute : nn::Recompute::none;
  config.split_backward = options.split_backward;
  config.adapter = options.adapter;
  config.fp8 = options.fp8;
  if (options.training && config.fp8.gathers_fp8) require_rows_for_fp8(spec, options);
  return config;
}

Transformer::Transformer(const ModelSpec& spec, const StageOptions& options,
                         ops::AttentionMask mask)
    : parts_(std::make_unique<TransformerParts>()) {
  parts_->spec = spec;
  parts_->options = options;
  parts_->options.cache_size = options.cache_size.resolved(options.B, options.T);
  parts_->block = block_config(spec, options, mask);
  parts_->embedding = embedding_config(spec, options);
}

Transformer::~Transformer() = default;

int Transformer::units() const { return static_cast<int>(parts_->spec.layers) + 2; }

param::Parametrization Transformer::parametrization() const {
  return parts_->spec.parametrization();
}

Shape Transformer::stream() const { return parts_->stream(); }

/// Every chunk takes all, so that memory does not depend on how the model is cut.
Batch Transformer::plan_batch(Arena& activations, ChunkEnds /*chunk*/) const {
  const Dim B = parts_->options.B;
  const Dim T = parts_->options.T;
  Batch batch;
  batch.tokens = activations.take(DType::i32, {B, T}, "tokens");
  batch.targets = activations.take(DType::i32, {B, T}, "targets");
  batch.token_sort_index = activations.take(DType::i32, {B * T}, "token sort index");
  batch.sample_position = activations.take(DType::i64, {B}, "sample positions");
  const TokenColumns& columns = parts_->options.loss.columns;
  if (columns.count() > 0) {
    batch.token_values = activations.take(DType::f32, {B, T, columns.count()}, "values of targets");
  }
  if (columns.teachers > 0) {
    batch.teacher_ids =
        activations.take(DType::i32, {B, T, columns.teachers}, "tokens of a teacher");
  }
  if (parts_->options.loss.of_pairs) {
    batch.pairs = activations.take(DType::i32, {B, T}, "pairs of targets");
  }
  if (parts_->options.documents) {
    const nn::ContextGroup& group = parts_->options.context_group;
    batch.first_keys = activations.take(DType::i32, {B, group.all_tokens(T)}, "first keys");
    if (!group.is_alone()) {
      batch.own_first_keys = activations.take(DType::i32, {B, T}, "own first keys");
    }
  }
  return batch;
}

Architecture::UnitInfo Transformer::info(int unit) const {
  const ModelSpec& spec = parts_->spec;
  if (unit == 0) return {"embedding", 0};  // copies rows, a ten-thousandth of a block's work
  if (unit <= spec.layers)
    return {"blocks." + std::to_string(unit - 1), block_cost(spec, unit - 1)};
  return {"head", head_cost(spec)};
}

std::unique_ptr<Unit> Transformer::make(int unit, param::ParamStore& params) {
  if (unit == 0) {
    auto embedding = std::make_unique<TokenEmbedding>(params, *parts_);
    if (parts_->spec.tie_embeddings) parts_->token_table = &embedding->table();
    return embedding;
  }
  if (unit <= parts_->spec.layers) {
    return std::make_unique<TransformerBlock>(params, *parts_, unit - 1);
  }
  parts_->head_writes_token_table = parts_->token_table != nullptr;
  return std::make_unique<LmHead>(params, *parts_);
}

void Transformer::plan_shared(Arenas& arenas) {
  const ModelSpec& spec = parts_->spec;
  if (spec.position == Position::rope) {
    const Shape angles = {spec.context, rotated_width(spec.rope, spec.head_width()) / 2};
    const DType statistics = parts_->options.statistics();
    const auto tables = [&](const std::string& name) {
      return RopeMemory{arenas.parameters.take(statistics, angles, name + ".cosines"),
                        arenas.parameters.take(statistics, angles, name + ".sines")};
    };
    rope_ = tables("rope");
    parts_->rope = {rope_.cosines, rope_.sines};
    parts_->local_rope = parts_->rope;
    if (spec.rope_local_theta > 0) {
      local_rope_ = tables("rope of windows");
      parts_->local_rope = {local_rope_.cosines, local_rope_.sines};
    }
  }
  parts_->scratch = nn::plan_scratch(arenas.scratch, nn::all_branches(parts_->block), parts_->block,
                                     parts_->activations(), parts_->options.training);
}

void Transformer::initialize(Context& ctx) {
  const ModelSpec& spec = parts_->spec;
  const auto write = [&](const RopeSpec& rope, const RopeMemory& to) {
    if (!to.cosines) return;
    const RopeAngles angles = rope_angles(rope, spec.head_width());
    ops::rope_table(ctx, angles.frequencies, angles.magnitude, to.cosines, to.sines);
  };
  write(spec.rope, rope_);
  write({.theta = spec.rope_local_theta, .fraction = spec.rope.fraction}, local_rope_);
}

}  // namespace hyperslab::model
