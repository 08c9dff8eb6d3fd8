// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/stage.hpp"

#include <cmath>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::model {
namespace {

nn::PositionTable position_table(Position position) {
  switch (position) {
    case Position::learned: return nn::PositionTable::learned;
    case Position::sinusoidal: return nn::PositionTable::fixed;
    default: return nn::PositionTable::none;
  }
}

nn::EmbeddingConfig embedding_config(const ModelSpec& spec, std::uint64_t seed) {
  const bool fixed = spec.position == Position::sinusoidal;
  return {spec.vocabulary,
          spec.width,
          spec.context,
          position_table(spec.position),
          fixed ? std::sqrt(static_cast<float>(spec.width)) : 1.0F,
          static_cast<float>(spec.dropout),
          seed,
          static_cast<float>(spec.init_std)};
}

}  // namespace

nn::BlockConfig Stage::block_config() const {
  nn::BlockConfig config;
  config.width = spec_.width;
  config.heads = {spec_.heads, spec_.kv_heads, spec_.head_width()};
  config.ffn_width = spec_.ffn_width;
  config.activation = spec_.activation;
  config.norm = spec_.norm;
  config.pre_norm = spec_.norm_place == NormPlace::pre;
  config.norm_eps = static_cast<float>(spec_.norm_eps);
  config.bias = spec_.bias;
  config.rope = spec_.position == Position::rope;
  config.keep_probabilities =
      spec_.attention == AttentionPath::reference ||
      (spec_.attention == AttentionPath::automatic && !options_.fused_attention);
  config.dropout = static_cast<float>(spec_.dropout);
  config.seed = options_.seed;
  config.init_std = static_cast<float>(spec_.init_std);
  config.residual_init_std =
      spec_.scale_residual_init
          ? config.init_std / std::sqrt(2.0F * static_cast<float>(spec_.layers))
          : config.init_std;
  return config;
}

Stage::Stage(ModelSpec spec, const StageOptions& options, Arenas& arenas)
    : spec_(std::move(spec)),
      options_(options),
      statistics_(options.compute == DType::f64 ? DType::f64 : DType::f32) {
  declare();
  // The tied table is finished only by the embedding's backward, long after the head's.
  params_.lay_out(options_.data_ranks, options_.bucket_bytes, spec_.tie_embeddings);
  params_.bind(arenas.parameters, options_.training ? &arenas.gradients : nullptr, statistics_,
               options_.compute);
  plan_constants(arenas);
  scratch_ = nn::plan_scratch(arenas.scratch, block_config(), options_.B, options_.T,
                              options_.compute, options_.training);
  logits_ = nn::Head::plan_logits(arenas.scratch, options_.B * options_.T, spec_.vocabulary,
                                  options_.compute, options_.logits_bytes);
  slots_.resize(index(options_.slots));
  for (Slot& slot : slots_) plan_slot(arenas, slot);
  if (options_.cache) plan_cache(arenas);
}

void Stage::declare() {
  params_.begin_unit();
  embedding_ = std::make_unique<nn::Embedding>(params_, embedding_config(spec_, options_.seed));
  const nn::BlockConfig config = block_config();
  blocks_.reserve(index(static_cast<int>(spec_.layers)));
  for (int layer = 0; layer < spec_.layers; ++layer) {
    params_.begin_unit();
    blocks_.emplace_back(params_, "blocks." + std::to_string(layer), config, layer);
  }
  params_.begin_unit();
  if (has_final_norm()) {
    final_norm_ =
        nn::Norm(params_, "final_norm", spec_.norm, spec_.width, config.norm_eps, spec_.bias);
  }
  head_ = std::make_unique<nn::Head>(params_, spec_.vocabulary, spec_.width,
                                     spec_.tie_embeddings ? &embedding_->table() : nullptr,
                                     config.init_std);
}

void Stage::plan_constants(Arenas& arenas) {
  if (spec_.position == Position::rope) {
    const Shape angles = {spec_.context, spec_.head_width() / 2};
    rope_cosines_ = arenas.parameters.take(statistics_, angles, "rope.cosines");
    rope_sines_ = arenas.parameters.take(statistics_, angles, "rope.sines");
    rope_ = {rope_cosines_, rope_sines_};
  }
  if (spec_.position == Position::sinusoidal) {
    fixed_positions_ = arenas.parameters.take(options_.compute, {spec_.context, spec_.width},
                                              "sinusoidal positions");
    embedding_->set_fixed_positions(fixed_positions_);
  }
}

void Stage::plan_slot(Arenas& arenas, Slot& slot) const {
  Arena& arena = arenas.activations;
  const Dim B = options_.B;
  const Dim T = options_.T;
  slot.batch = {arena.take(DType::i32, {B, T}, "tokens"), arena.take(DType::i32, {B, T}, "targets"),
                arena.take(DType::i32, {B * T}, "token order"),
                arena.take(DType::i64, {B}, "sample positions")};
  const Shape width = {B, T, spec_.width};
  slot.embedded = arena.take(options_.compute, width, "embedding.output");
  const std::size_t kept = options_.training ? blocks_.size() : 1;
  for (std::size_t i = 0; i < kept && !blocks_.empty(); ++i) {
    const bool adds = i > 0 || !options_.training;
    slot.blocks.push_back(blocks_[i].plan(arena, B, T, options_.compute, statistics_, adds,
                                          "blocks." + std::to_string(i)));
  }
  if (has_final_norm()) {
    slot.final_norm =
        final_norm_.plan(arena, width, options_.compute, statistics_, true, "final_norm");
  }
  if (options_.training) slot.d = arena.take(options_.compute, width, "d_residual");
}

void Stage::initialize(Context& ctx) {
  if (ctx.device() == Device::meta) return;
  if (rope_cosines_) {
    ops::rope_table(ctx, static_cast<float>(spec_.rope_theta), rope_cosines_, rope_sines_);
  }
  if (fixed_positions_) ops::sinusoidal_table(ctx, fixed_positions_);
  if (ctx.device() == Device::cpu) {
    nn::initialize(params_, options_.seed, params_.master());
    return;
  }
  Tensor host(Device::cpu, statistics_, {params_.flat_size()});
  nn::initialize(params_, options_.seed, host.view());
  copy(ctx, host.view(), params_.master());
  synchronize(ctx);  // before the host's copy goes
}

nn::Block::Slot& Stage::block_slot(Slot& slot, int block) const {
  return slot.blocks[options_.training ? index(block) : 0];
}

nn::BatchInfo Stage::info(const Slot& slot, Pass pass, const StepViews& step) const {
  return {slot.batch.sample_position, step.state, pass == Pass::train};
}

CView Stage::head_input(Context& ctx, Slot& slot) const {
  if (!has_final_norm()) return slot.stream.residual;
  final_norm_.forward(ctx, slot.stream.residual, slot.stream.delta, slot.final_norm);
  return slot.final_norm.y();
}

void Stage::forward(Context& ctx, int slot_index, int unit, Pass pass, const StepViews& step,
                    Accumulate accumulate) {
  Slot& slot = slots_.at(index(slot_index));
  const nn::BatchInfo batch = info(slot, pass, step);
  if (unit == 0) {
    embedding_->forward(ctx, slot.batch.tokens, 0, batch, slot.embedded);
    slot.stream = {slot.embedded, {}};
  } else if (unit < units() - 1) {
    slot.stream = blocks_[index(unit - 1)].forward(ctx, slot.stream, rope_, batch, scratch_,
                                                   block_slot(slot, unit - 1));
  } else {
    const CView x = head_input(ctx, slot).as_matrix();
    const CView targets = slot.batch.targets.flat();
    if (pass == Pass::train) {
      head_->loss_and_gradient(ctx, x, targets, step.state, logits_, step.sums, slot.d.as_matrix(),
                               accumulate);
    } else {
      head_->loss(ctx, x, targets, step.state, logits_, step.sums);
    }
  }
}

void Stage::backward(Context& ctx, int slot_index, int unit, const StepViews& step,
                     Accumulate accumulate) {
  require(options_.training, "this stage was planned without gradients");
  Slot& slot = slots_.at(index(slot_index));
  const nn::BatchInfo batch = info(slot, Pass::train, step);
  if (unit == units() - 1) {
    if (has_final_norm()) {
      final_norm_.backward(ctx, slot.final_norm, slot.d, Accumulate::no, slot.d, accumulate);
    }
  } else if (unit > 0) {
    const int block = unit - 1;
    blocks_[index(block)].backward(ctx, rope_, batch, scratch_, block_slot(slot, block),
                                   activation(slot_index, unit - 1), slot.d, accumulate);
  } else {
    const Accumulate table = spec_.tie_embeddings ? Accumulate::yes : accumulate;
    embedding_->backward(ctx, slot.batch.tokens, slot.batch.order, batch, slot.d, table,
                         accumulate);
  }
}

CView Stage::activation(int slot_index, int unit) const {
  const Slot& slot = slots_.at(index(slot_index));
  if (unit == 0 || blocks_.empty()) return slot.embedded;
  require(options_.training, "a forward-only stage keeps no activations");
  if (spec_.norm_place == NormPlace::post) return slot.blocks[index(unit - 1)].norm2.y();
  // Before the sublayers, the next norm holds the sum that the block left.
  return index(unit) < blocks_.size() ? slot.blocks[index(unit)].norm1.x : slot.final_norm.x;
}

}  // namespace hyperslab::model
