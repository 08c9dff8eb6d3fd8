// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/stage.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::model {
namespace {

nn::PositionTable position_table(Position position) {
  switch (position) {
    case Position::learned: return nn::PositionTable::learned;
    case Position::sinusoidal: return nn::PositionTable::fixed;
    default: return nn::PositionTable::none;
  }
}

bool trains(const StageOptions& options, param::Role role) {
  const std::vector<param::Role>& roles = options.trained_roles;
  return roles.empty() || std::ranges::find(roles, role) != roles.end();
}

}  // namespace

nn::EmbeddingConfig Stage::embedding_config() const {
  nn::EmbeddingConfig config;
  config.vocabulary = spec_.vocabulary;
  config.width = spec_.width;
  config.context = spec_.context;
  config.positions = position_table(spec_.position);
  config.scale = static_cast<float>(spec_.scale_of_embeddings());
  config.dropout = static_cast<float>(spec_.dropout);
  config.seed = options_.seed;
  config.init_std = static_cast<float>(spec_.init_std);
  config.tied = spec_.tie_embeddings;
  config.group = options_.tensor;
  config.vocabulary_split = vocabulary_;
  return config;
}

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
  config.group = options_.tensor;
  config.recompute = options_.training ? options_.recompute : nn::Recompute::none;
  config.split_backward = options_.split_backward;
  return config;
}

Stage::Stage(ModelSpec spec, const StageOptions& options, Arenas& arenas,
             dp::ShardStrategy& strategy)
    : spec_(std::move(spec)),
      options_(options),
      statistics_(options.compute == DType::f64 ? DType::f64 : DType::f32),
      vocabulary_(options.tensor, spec_.vocabulary, options.vocabulary_multiple),
      params_(options.ranks, [&](param::Role role) { return trains(options, role); }) {
  if (options_.chunks.empty()) options_.chunks = {{0, static_cast<int>(spec_.layers) + 2, 1}};
  declare();
  params_.lay_out(options_.bucket_bytes);
  strategy.allocate(params_, arenas.parameters, options_.training ? &arenas.gradients : nullptr,
                    statistics_, options_.compute);
  plan_constants(arenas);
  plan_shared(arenas);
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    std::vector<Slot>& slots = slots_.emplace_back(index(options_.chunks[index(chunk)].slots));
    const std::size_t before = arenas.activations.used_bytes();
    for (Slot& slot : slots) plan_slot(arenas, chunk, slot);
    const std::size_t taken = arenas.activations.used_bytes() - before;
    slot_bytes_.push_back(static_cast<std::int64_t>(taken / slots.size()));
  }
  if (options_.cache) plan_cache(arenas);
}

void Stage::declare() {
  std::size_t blocks = 0;
  for (const Chunk& chunk : options_.chunks) blocks += index(chunk.units);
  blocks_.reserve(blocks);
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    const Chunk& range = options_.chunks[index(chunk)];
    for (int i = 0; i < range.units; ++i) declare_unit(chunk, range.first_unit + i);
  }
}

void Stage::declare_unit(int chunk, int global_unit) {
  params_.begin_unit();
  const nn::BlockConfig config = block_config();
  Unit unit;
  unit.chunk = chunk;
  unit.layer = global_unit - 1;
  if (global_unit == 0) {
    unit.kind = UnitKind::embedding;
    embedding_ = std::make_unique<nn::Embedding>(params_, embedding_config());
  } else if (global_unit <= spec_.layers) {
    unit.block = static_cast<int>(blocks_.size());
    blocks_.emplace_back(params_, "blocks." + std::to_string(unit.layer), config, unit.layer);
  } else {
    unit.kind = UnitKind::head;
    if (has_final_norm()) {
      final_norm_ = nn::Norm(params_, options_.tensor, "final_norm",
                             {spec_.norm, spec_.width, config.norm_eps, spec_.bias});
    }
    const bool has_table = spec_.tie_embeddings && embedding_ != nullptr;
    head_ = std::make_unique<nn::Head>(params_, embedding_config(),
                                       has_table ? &embedding_->table() : nullptr);
  }
  units_.push_back(unit);
}

Stage::UnitRange Stage::units(int chunk) const {
  UnitRange range;
  for (int i = 0; i < chunk; ++i) range.first += options_.chunks[index(i)].units;
  range.last = range.first + options_.chunks[index(chunk)].units;
  return range;
}

bool Stage::has_embedding(int chunk) const { return options_.chunks[index(chunk)].first_unit == 0; }

bool Stage::has_head(int chunk) const {
  const Chunk& range = options_.chunks[index(chunk)];
  return range.first_unit + range.units == spec_.layers + 2;
}

void Stage::plan_constants(Arenas& arenas) {
  if (spec_.position == Position::rope) {
    const Shape angles = {spec_.context, spec_.head_width() / 2};
    rope_cosines_ = arenas.parameters.take(statistics_, angles, "rope.cosines");
    rope_sines_ = arenas.parameters.take(statistics_, angles, "rope.sines");
    rope_ = {rope_cosines_, rope_sines_};
  }
  if (spec_.position == Position::sinusoidal && embedding_) {
    fixed_positions_ = arenas.parameters.take(options_.compute, {spec_.context, spec_.width},
                                              "sinusoidal positions");
    embedding_->set_fixed_positions(fixed_positions_);
  }
}

void Stage::plan_shared(Arenas& arenas) {
  const nn::ActivationSpec spec = activation_spec();
  scratch_ = nn::plan_scratch(arenas.scratch, block_config(), spec, options_.training);
  if (head_) head_memory_ = head_->plan(arenas.scratch, spec, scratch_, options_.logits_bytes);
  if (!shares_block_slot() || blocks_.empty()) return;
  shared_block_ = blocks_.front().plan(arenas.scratch, scratch_, spec, !options_.training, "block");
}

void Stage::plan_slot(Arenas& arenas, int chunk, Slot& slot) const {
  Arena& arena = arenas.activations;
  const Dim B = options_.B;
  const Dim T = options_.T;
  const DType compute = options_.compute;
  slot.batch = {arena.take(DType::i32, {B, T}, "tokens"), arena.take(DType::i32, {B, T}, "targets"),
                arena.take(DType::i32, {B * T}, "token sort index"),
                arena.take(DType::i64, {B}, "sample positions")};
  slot.entry = arena.take(compute, stream_shape(),
                          has_embedding(chunk) ? "embedding.output" : "stage input");
  const UnitRange range = units(chunk);
  for (int i = range.first; i < range.last; ++i) {
    const Unit& unit = units_[index(i)];
    if (unit.kind != UnitKind::block) continue;
    const std::string label = "blocks." + std::to_string(unit.layer);
    const bool enters = place(unit) == 0;  // with the chunk's entry, to which nothing is added
    if (!shares_block_slot()) {
      slot.blocks.push_back(
          blocks_[index(unit.block)].plan(arena, scratch_, activation_spec(), !enters, label));
    } else if (options_.training) {
      slot.inputs.push_back(enters ? slot.entry
                                   : arena.take(compute, stream_shape(), label + ".input"));
    }
  }
  if (has_head(chunk) && has_final_norm()) {
    slot.final_norm =
        final_norm_.plan(arena, {stream_shape(), compute, statistics_, true}, "final_norm");
  }
  if (!has_head(chunk)) slot.output = arena.take(compute, stream_shape(), "stage output");
  if (options_.training) slot.d = arena.take(compute, stream_shape(), "d_residual");
}

void Stage::initialize(Context& ctx) {
  if (ctx.device() == Device::meta) return;
  if (rope_cosines_) {
    ops::rope_table(ctx, static_cast<float>(spec_.rope_theta), rope_cosines_, rope_sines_);
  }
  if (fixed_positions_) ops::sinusoidal_table(ctx, fixed_positions_);
  for (const param::ParamGroup& group : params_.groups()) {
    param::initialize(ctx, group, options_.seed);
  }
}

/// Which of its chunk's blocks a block is.
int Stage::place(const Unit& unit) const {
  const int first_layer = std::max(options_.chunks[index(unit.chunk)].first_unit - 1, 0);
  return unit.layer - first_layer;
}

nn::Block::Slot& Stage::block_slot(Slot& slot, const Unit& unit) {
  return shares_block_slot() ? shared_block_ : slot.blocks[index(place(unit))];
}

nn::BatchInfo Stage::info(const Slot& slot, Mode mode, const StepViews& step) const {
  return {slot.batch.sample_position, step.state, mode == Mode::train};
}

CView Stage::head_input(Context& ctx, Slot& slot) const {
  if (!has_final_norm()) return slot.stream.residual;
  final_norm_.forward(ctx, slot.stream.residual, slot.stream.delta, slot.final_norm);
  return slot.final_norm.y();
}

void Stage::head_forward(Context& ctx, Slot& slot, Mode mode, const StepViews& step,
                         Accumulate accumulate) {
  const CView x = head_input(ctx, slot);
  const CView targets = slot.batch.targets.flat();
  if (mode == Mode::train) {
    head_->loss_and_gradient(ctx, x, targets, step, head_memory_, slot.d, accumulate);
  } else {
    head_->loss(ctx, x, targets, step, head_memory_);
  }
}

/// With full recomputation the stream is added up and kept where a block begins.
void Stage::keep_input(Context& ctx, Slot& slot, const Unit& unit) const {
  const View kept = slot.inputs[index(place(unit))];
  if (slot.stream.delta) {
    ops::add(ctx, slot.stream.residual, slot.stream.delta, kept);
  } else if (slot.stream.residual.raw() != kept.raw()) {
    ops::cast(ctx, slot.stream.residual, kept);
  }
  slot.stream = {kept, {}};
}

void Stage::forward(Context& ctx, SlotId id, int unit_index, Mode mode, const StepViews& step,
                    Accumulate accumulate) {
  Slot& slot = this->slot(id);
  const Unit& unit = units_.at(index(unit_index));
  const nn::BatchInfo batch = info(slot, mode, step);
  if (unit_index == units(id.chunk).first) slot.stream = {slot.entry, {}};
  switch (unit.kind) {
    case UnitKind::embedding:
      embedding_->forward(ctx, slot.batch.tokens, 0, batch, scratch_, slot.entry);
      return;
    case UnitKind::block:
      if (!slot.inputs.empty()) keep_input(ctx, slot, unit);
      slot.stream = blocks_[index(unit.block)].forward(ctx, slot.stream, rope_, batch, scratch_,
                                                       block_slot(slot, unit));
      return;
    case UnitKind::head: return head_forward(ctx, slot, mode, step, accumulate);
  }
}

void Stage::finish_forward(Context& ctx, SlotId id) {
  const Slot& slot = this->slot(id);
  if (slot.stream.delta) {
    ops::add(ctx, slot.stream.residual, slot.stream.delta, slot.output);
  } else {
    ops::cast(ctx, slot.stream.residual, slot.output);
  }
}

void Stage::block_backward(Context& ctx, SlotId id, int unit_index, const nn::BackwardPass& pass) {
  Slot& slot = this->slot(id);
  const Unit& unit = units_[index(unit_index)];
  const nn::Block& block = blocks_[index(unit.block)];
  nn::Block::Slot& saved = block_slot(slot, unit);
  const CView input = block_input(id, unit_index);
  if (options_.recompute == nn::Recompute::full) {
    (void)block.forward(ctx, {input, {}}, rope_, pass.batch, scratch_, saved);
  }
  block.backward(ctx, pass, saved, input, slot.d);
}

void Stage::backward(Context& ctx, SlotId id, int unit_index, const StepViews& step,
                     Accumulate accumulate, nn::BackwardPart part) {
  require(options_.training, "this stage was planned without gradients");
  const Slot& slot = this->slot(id);
  const Unit& unit = units_.at(index(unit_index));
  const nn::BatchInfo batch = info(slot, Mode::train, step);
  const nn::BackwardPass pass = {rope_, batch, scratch_, accumulate, part};
  if (unit.kind == UnitKind::block) return block_backward(ctx, id, unit_index, pass);
  if (part == nn::BackwardPart::weight) return;  // done with the input's part
  if (unit.kind == UnitKind::head) {
    if (has_final_norm()) {
      final_norm_.backward(ctx, slot.final_norm, slot.d, Accumulate::no, slot.d, accumulate);
    }
    return;
  }
  const bool head_wrote = spec_.tie_embeddings && head_ != nullptr;
  embedding_->backward(ctx, slot.batch.tokens, slot.batch.token_sort_index, pass, slot.d,
                       head_wrote ? Accumulate::yes : accumulate);
}

CView Stage::block_input(SlotId id, int unit) const {
  const Slot& slot = this->slot(id);
  if (!slot.inputs.empty()) return slot.inputs[index(place(units_[index(unit)]))];
  return unit == units(id.chunk).first ? CView(slot.entry) : activation(id, unit - 1);
}

CView Stage::activation(SlotId id, int unit) const {
  const Slot& slot = this->slot(id);
  const UnitRange range = units(id.chunk);
  require(options_.training, "a forward-only stage keeps no activations");
  if (unit + 1 == range.last && !has_head(id.chunk)) return slot.output;
  if (units_[index(unit)].kind == UnitKind::embedding) return slot.entry;
  const Unit& next = units_.at(index(unit + 1));
  if (!slot.inputs.empty() && next.kind == UnitKind::block) {
    return slot.inputs[index(place(next))];
  }
  if (spec_.norm_place == NormPlace::post) {
    return (slot.inputs.empty() ? slot.blocks[index(place(units_[index(unit)]))] : shared_block_)
        .norm2.y();
  }
  // Before the sublayers, the next norm holds the sum that the block left.
  return next.kind == UnitKind::block ? slot.blocks[index(place(next))].norm1.x : slot.final_norm.x;
}

}  // namespace hyperslab::model
