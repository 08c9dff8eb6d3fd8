// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/elementwise.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {

LmHead::LmHead(param::ParamStore& params, const TransformerParts& parts)
    : parts_(parts),
      norm_(parts.has_final_norm() ? nn::Norm(params, parts.options.tensor, "final_norm",
                                              {parts.spec.norm, parts.spec.width,
                                               parts.block.norm_eps, parts.spec.bias})
                                   : nn::Norm()),
      head_(params, parts.embedding, parts.token_table) {}

void LmHead::plan_shared(Arenas& arenas) {
  const StageOptions& options = parts_.options;
  memory_ = head_.plan(arenas.scratch, parts_.activations(), parts_.scratch, options.logits_bytes);
  if (!options.cache) return;
  last_rows_ = arenas.activations.take(options.compute,
                                       {options.cache_size.rows, parts_.spec.width}, "last rows");
}

CView LmHead::plan(Arena& activations, CView /*in*/) {
  Slot& slot = slots_.emplace_back();
  if (parts_.has_final_norm()) {
    const StageOptions& options = parts_.options;
    slot.norm = norm_.plan(
        activations, {parts_.stream(), options.compute, options.statistics(), true}, "final_norm");
  }
  return {};
}

CView LmHead::normalized(Context& ctx, nn::ResidualStream in, nn::Norm::Slot& slot) const {
  if (!parts_.has_final_norm()) return in.residual;
  norm_.forward(ctx, in.residual, in.delta, slot);
  return slot.y();
}

nn::ResidualStream LmHead::forward(Context& ctx, const UnitCall& call, nn::ResidualStream in) {
  Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  if (call.mode == Mode::decode) {
    decode(ctx, call, in, slot);
    return {};
  }
  slot.input = in.residual;
  const CView x = normalized(ctx, in, slot.norm);
  const CView targets = call.batch.targets.flat();
  if (call.mode == Mode::train) {
    head_.loss_and_gradient(ctx, x, targets, call.step, memory_, call.d, call.accumulate);
  } else {
    head_.loss(ctx, x, targets, call.step, memory_);
  }
  return {};
}

void LmHead::decode(Context& ctx, const UnitCall& call, nn::ResidualStream in,
                    const Slot& slot) const {
  const auto [B, T] = call.batch.tokens.dims<2>("decode tokens");
  nn::Norm::Slot norm = slot.norm.for_tokens({B, T});
  const CView rows = normalized(ctx, in, norm).as_matrix();
  if (call.logits.shape()[0] == B * T) return head_.logits(ctx, rows, call.logits);
  for (Dim b = 0; b < B; ++b) {
    ops::cast(ctx, rows.slice(b * T + call.last, 1), last_rows_.slice(b, 1));
  }
  head_.logits(ctx, last_rows_.slice(0, B), call.logits);
}

void LmHead::backward(Context& ctx, const UnitCall& call) {
  if (call.part == nn::BackwardPart::weight || !parts_.has_final_norm()) return;
  const Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  norm_.backward(ctx, slot.norm, call.d, Accumulate::no, call.d, call.accumulate);
}

CView LmHead::input(int slot) const {
  const Slot& of = slots_.at(static_cast<std::size_t>(slot));
  return parts_.has_final_norm() ? of.norm.x : of.input;
}

}  // namespace hyperslab::model
