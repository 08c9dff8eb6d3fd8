// SPDX-License-Identifier: Apache-2.0
#include "vision_units.hpp"

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::model {
namespace {

nn::PatchEmbeddingConfig embedding_of(const TransformerParts& parts) {
  const ModelSpec& spec = parts.spec;
  nn::PatchEmbeddingConfig config;
  config.patches = spec.image.patches();
  config.patch_values = spec.image.patch_values();
  config.width = spec.width;
  config.class_token = spec.image.pooling == Pooling::token;
  config.positions = spec.position == Position::learned    ? nn::PositionTable::learned
                     : spec.position == Position::sincos2d ? nn::PositionTable::fixed
                                                           : nn::PositionTable::none;
  config.dropout = static_cast<float>(spec.dropout);
  config.seed = parts.options.seed;
  config.init = spec.matrix_init();
  config.position_std =
      static_cast<float>(spec.position_std > 0 ? spec.position_std : spec.init_std);
  config.group = parts.options.tensor;
  return config;
}

nn::ClassHeadConfig head_of(const TransformerParts& parts) {
  const ModelSpec& spec = parts.spec;
  nn::ClassHeadConfig config;
  config.width = spec.width;
  config.classes = spec.image.classes;
  config.columns = round_up(spec.image.classes, parts.options.vocabulary_multiple);
  config.tokens = spec.image.tokens();
  config.class_token = spec.image.pooling == Pooling::token;
  config.label_smoothing = spec.label_smoothing;
  config.logit_scale = static_cast<float>(spec.parametrization().logit_factor());
  config.init = spec.matrix_init();
  config.norm = parts.has_final_norm() ? spec.norm : ops::NormKind::none;
  config.norm_eps = static_cast<float>(spec.norm_eps);
  config.bias = spec.bias;
  config.group = parts.options.tensor;
  return config;
}

void require_no_decode(const UnitCall& call) {
  require(call.mode != Mode::decode, "a vision transformer generates nothing");
}

}  // namespace

PatchUnit::PatchUnit(param::ParamStore& params, const TransformerParts& parts)
    : parts_(parts), embedding_(params, embedding_of(parts)) {}

void PatchUnit::plan_shared(Arenas& arenas) {
  embedded_ = embedding_.plan(arenas.scratch, parts_.activations());
  if (parts_.spec.position != Position::sincos2d) return;
  fixed_positions_ = arenas.parameters.take(
      parts_.options.compute, {parts_.spec.context, parts_.spec.width}, "sinusoidal positions");
  embedding_.set_fixed_positions(fixed_positions_);
}

void PatchUnit::initialize(Context& ctx) {
  if (fixed_positions_) ops::sincos2d_table(ctx, parts_.spec.image.grid(), fixed_positions_);
}

CView PatchUnit::plan(Arena& activations, CView /*in*/) {
  return outputs_.emplace_back(
      activations.take(parts_.options.compute, parts_.stream(), "embedding.output"));
}

nn::ResidualStream PatchUnit::forward(Context& ctx, const UnitCall& call,
                                      nn::ResidualStream /*in*/) {
  require_no_decode(call);
  const View y = outputs_.at(static_cast<std::size_t>(call.slot));
  embedding_.forward(ctx, call.batch.patches, parts_.info(call), parts_.scratch, embedded_, y);
  return {y, {}};
}

void PatchUnit::backward(Context& ctx, const UnitCall& call) {
  if (call.part == nn::BackwardPart::weight) return;  // the input's part did all
  const nn::BatchInfo info = parts_.info(call);
  embedding_.backward(ctx, call.batch.patches,
                      {parts_.rope, info, parts_.scratch, call.accumulate, call.part}, embedded_,
                      call.d);
}

ClassUnit::ClassUnit(param::ParamStore& params, const TransformerParts& parts)
    : parts_(parts), head_(params, head_of(parts)) {}

void ClassUnit::plan_shared(Arenas& arenas) {
  memory_ = head_.plan(arenas.scratch, parts_.activations(), parts_.options.training);
}

CView ClassUnit::plan(Arena& activations, CView /*in*/) {
  slots_.push_back({head_.plan_slot(activations, parts_.activations()), {}});
  return {};
}

nn::ResidualStream ClassUnit::forward(Context& ctx, const UnitCall& call, nn::ResidualStream in) {
  require_no_decode(call);
  Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  slot.input = in.residual;
  const nn::ClassHead::Labels labels = {call.batch.labels, call.batch.label_weights};
  if (call.mode == Mode::train) {
    head_.loss_and_gradient(ctx, in, labels, call.step, memory_, slot.head, call.d,
                            call.accumulate);
  } else {
    head_.loss(ctx, in, labels, call.step, memory_, slot.head);
  }
  return {};
}

}  // namespace hyperslab::model
