// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/ops/elementwise.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {
namespace {

/// Weights change before the first microbatch of a step, or between passes that are not of
/// training. The first one overwrites gradients; where others do so too (parallel.zero 2), they
/// round the same weights again.
nn::Fp8Weights weights_of(const UnitCall& call) {
  if (call.mode != Mode::train) return nn::Fp8Weights::rounded;
  return call.accumulate == Accumulate::no ? nn::Fp8Weights::renewed : nn::Fp8Weights::kept;
}

}  // namespace

TransformerBlock::TransformerBlock(param::ParamStore& params, TransformerParts& parts, int layer)
    : parts_(parts),
      layer_(layer),
      shares_slot_(parts.next_shares_slot()),
      rests_on_host_(shares_slot_ && parts.options.training && parts.rests_on_host()),
      name_("blocks." + std::to_string(layer)),
      block_(params, name_, parts.block_of(layer), layer) {}

void TransformerBlock::plan_shared(Arenas& arenas) {
  const bool training = parts_.options.training;
  std::unique_ptr<nn::Block::Slot>& one_slot = parts_.shared_slot(layer_);
  if (shares_slot_ && !one_slot) {  // the stage's first block of the kind takes it for all
    one_slot = std::make_unique<nn::Block::Slot>(
        block_.plan(arenas.scratch, parts_.scratch, parts_.activations(),
                    !training && block_.leaves_delta(), "block"));
    if (rests_on_host_ && !parts_.host_inputs) {
      parts_.host_inputs = std::make_unique<HostInputs>(arenas.scratch, arenas.host,
                                                        parts_.options.compute, parts_.stream());
    }
  }
  if (parts_.options.generation != Generation::cached) return;
  const CacheSize& size = parts_.options.cache_size;
  block_.plan_texts(arenas.activations, {size.rows, size.tokens, size.pages, size.page_tokens()},
                    parts_.options.compute, name_);
}

CView TransformerBlock::plan(Arena& activations, CView in) {
  Slot& slot = slots_.emplace_back();
  if (!shares_slot_) {
    slot.block = block_.plan(activations, parts_.scratch, parts_.activations(),
                             !in && block_.leaves_delta(), name_);
  } else if (rests_on_host_ && !in) {
    slot.on_host = parts_.host_inputs->plan(name_ + ".input");
  } else if (parts_.options.training && !in) {
    slot.sum = activations.take(parts_.options.compute, parts_.stream(), name_ + ".input");
  }
  return {};
}

/// A stream that is to outlive the pass: the sum of its two terms, in the slot.
nn::ResidualStream TransformerBlock::keep(Context& ctx, const Slot& slot,
                                          nn::ResidualStream in) const {
  if (!slot.sum) return in;
  if (in.delta) {
    ops::add(ctx, in.residual, in.delta, slot.sum);
  } else {
    ops::cast(ctx, in.residual, slot.sum);
  }
  return {slot.sum, {}};
}

nn::ResidualStream TransformerBlock::forward(Context& ctx, const UnitCall& call,
                                             nn::ResidualStream in) {
  const nn::BatchInfo info = parts_.info(call);
  if (call.mode == Mode::decode) return decode(ctx, call, info, in);
  Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  if (slot.on_host >= 0) slot.sum = parts_.host_inputs->fill(ctx, slot.on_host);
  in = keep(ctx, slot, in);
  if (slot.on_host >= 0 && call.mode == Mode::train) {
    parts_.host_inputs->take_away(ctx, slot.on_host);
  }
  slot.input = in.residual;
  return block_.forward(
      ctx, in,
      {.rope = rope(), .batch = info, .scratch = parts_.scratch, .fp8_weights = weights_of(call)},
      memory(slot));
}

nn::ResidualStream TransformerBlock::decode(Context& ctx, const UnitCall& call,
                                            const nn::BatchInfo& info, nn::ResidualStream in) {
  const nn::TokenCount count = call.token_count();
  const nn::Scratch scratch = parts_.scratch.for_tokens(count);
  // Between two steps nothing in the first slot is needed any more.
  Slot& first = slots_.front();
  nn::Block::Slot slot = block_.for_tokens(memory(first), count);
  if (first.on_host >= 0) first.sum = parts_.host_inputs->fill(ctx, first.on_host);
  in = keep(ctx, {.block = {}, .sum = nn::for_tokens(first.sum, count), .input = {}}, in);
  return block_.forward(ctx, in, {rope(), info, scratch, call.texts}, slot);
}

void TransformerBlock::backward(Context& ctx, const UnitCall& call) {
  Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  nn::Block::Slot& saved = memory(slot);
  const nn::BatchInfo info = parts_.info(call);
  if (slot.on_host >= 0) slot.input = parts_.host_inputs->bring(ctx, slot.on_host);
  if (shares_slot_) {  // Recompute::full
    (void)block_.forward(ctx, {slot.input, {}},
                         {.rope = rope(),
                          .batch = info,
                          .scratch = parts_.scratch,
                          .fp8_weights = nn::Fp8Weights::kept,
                          .repeated = true},
                         saved);
  }
  block_.backward(ctx, {rope(), info, parts_.scratch, call.accumulate, call.part}, saved, call.d);
}

CView TransformerBlock::input(int slot) const {
  const Slot& of = slots_.at(static_cast<std::size_t>(slot));
  return shares_slot_ ? of.input : of.block.front().norm.x;  // the sum that entered
}

nn::Block::Slot& TransformerBlock::memory(Slot& slot) const {
  return shares_slot_ ? *parts_.shared_slot(layer_) : slot.block;
}

}  // namespace hyperslab::model
