// SPDX-License-Identifier: Apache-2.0
// Generation with a key-value cache: the stage's forward for few new tokens.
#include "hyperslab/core/error.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::model {
namespace {

/// The front of a (B, T, ...) or (B, T) buffer as (B, T_new, ...).
View shortened(View view, Dim T_new) {
  if (!view) return view;
  std::array<Dim, kMaxRank> dims{};
  const Shape& shape = view.shape();
  std::copy(shape.dims().begin(), shape.dims().end(), dims.begin());
  dims[1] = T_new;
  return {view.raw(), view.dtype(), view.device(),
          Shape(std::span<const Dim>(dims.data(), shape.dims().size()))};
}

nn::Norm::Slot shortened(const nn::Norm::Slot& slot, Dim T_new) {
  return {shortened(slot.sum, T_new),
          shortened(slot.out, T_new),
          shortened(slot.mean, T_new),
          shortened(slot.rstd, T_new),
          {}};
}

nn::Block::Slot shortened(const nn::Block::Slot& slot, Dim T_new) {
  return {
      shortened(slot.norm1, T_new),
      {shortened(slot.attention.qkv, T_new), shortened(slot.attention.out, T_new), {}, {}, {}, {}},
      shortened(slot.norm2, T_new),
      {shortened(slot.mlp.pre, T_new), shortened(slot.mlp.activated, T_new), {}}};
}

}  // namespace

void Stage::plan_cache(Arenas& arenas) {
  const Dim kv_width = spec_.kv_heads * spec_.head_width();
  const Shape shape = {options_.B, options_.T, kv_width};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::string label = "blocks." + std::to_string(i) + ".cache";
    cache_.push_back({arenas.activations.take(options_.compute, shape, label + ".keys"),
                      arenas.activations.take(options_.compute, shape, label + ".values")});
  }
  last_rows_ = arenas.activations.take(options_.compute, {options_.B, spec_.width}, "last rows");
}

void Stage::decode(Context& ctx, CView tokens, Dim past, View logits) {
  require(options_.cache && !options_.training, "this stage was planned without a cache");
  require(options_.tensor.is_alone() && embedding_ && head_, "generation takes the whole model");
  const auto [B, T_new] = tokens.dims<2>("decode tokens");
  Slot& full = slot({0, 0});
  nn::Scratch scratch;
  scratch.delta = shortened(scratch_.delta, T_new);
  nn::Block::Slot block = shortened(shared_block_, T_new);
  const View embedded = shortened(full.entry, T_new);
  embedding_->forward(ctx, tokens, past, {}, scratch, embedded);
  nn::ResidualStream stream = {embedded, {}};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    stream = blocks_[i].decode(ctx, stream, rope_, past, cache_[i], scratch, block);
  }
  CView x = stream.residual;
  nn::Norm::Slot final_slot = shortened(full.final_norm, T_new);
  if (has_final_norm()) {
    final_norm_.forward(ctx, stream.residual, stream.delta, final_slot);
    x = final_slot.y();
  }
  const CView rows = x.as_matrix();
  for (Dim b = 0; b < B; ++b) {
    ops::cast(ctx, rows.slice(b * T_new + T_new - 1, 1), last_rows_.slice(b, 1));
  }
  head_->logits(ctx, last_rows_, logits);
}

}  // namespace hyperslab::model
