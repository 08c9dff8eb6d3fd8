// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/mlp.hpp"

#include <algorithm>

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

/// Rows of the stream, of this rank, that pass at once, and the memory for them.
struct Mlp::Piece {
  Dim begin = 0;
  Dim count = 0;
  Slot slot;
  Scratch scratch;
  /// The rows of a view of the stream.
  template <class AnyView>
  [[nodiscard]] AnyView of(AnyView stream) const {
    return stream.as_matrix().slice(begin, count);
  }
};

Mlp::Mlp(param::ParamStore& params, const std::string& name, const BlockConfig& config,
         SublayerPlace place)
    : config_(config), place_(place), ffn_width_(config.ffn_width / config.group.size()) {
  const Hyperslab part = config.group.shard({config.ffn_width}, 0);
  std::vector<Linear::Output> up = {{name + ".up", config.ffn_width, part}};
  if (ops::is_gated(config.activation)) {
    up.insert(up.begin(), {name + ".gate", config.ffn_width, part});
  }
  up_ = Linear(params, config.group, up,
               {config.width, config.bias, config.init, Parallel::column, config.adapter,
                config.fp8.of_block(place.layer, config.layers)});
  down_ = Linear(params, config.group, {{name + ".down", config.width}},
                 {config.ffn_width, config.bias, config.residual_init, Parallel::row,
                  config.adapter, config.fp8.of_block(place.layer, config.layers)});
}

namespace {

/// Values that all layers use in turn, as Mlp::Slot has them; `activated` with
/// Recompute::selective only.
struct MlpMemory {
  View activated;
  View d_activated;
};

SublayerMemory plan_mlp_memory(Arena& arena, const BlockConfig& config,
                               const ActivationSpec& spec) {
  const Dim ffn_width = config.ffn_width / config.group.size();
  MlpMemory memory;
  if (config.recompute == Recompute::selective) {
    memory.activated = arena.take(spec.compute, {spec.B, spec.T, ffn_width}, "activated");
  }
  const bool by_itself = ops::is_gated(config.activation) || config.fp8 ||
                         config.adapter.applies_to(name_of(AdapterTarget::down));
  if (!by_itself) return memory;
  const ActivationSpec inner = mlp_spec(config, spec);
  memory.d_activated = arena.take(spec.compute, {inner.B, inner.T, ffn_width}, "d_activated");
  return memory;
}

}  // namespace

SublayerSlot Mlp::plan(Arena& activations, const SublayerMemory& shared, const ActivationSpec& spec,
                       const std::string& label) const {
  const ActivationSpec inner = mlp_spec(config_, spec);
  const auto& [B, T, compute, statistics] = inner;
  const Dim F = ffn_width_;
  const Dim pre_width = ops::is_gated(config_.activation) ? 2 * F : F;
  const auto* given = std::any_cast<MlpMemory>(&shared);
  const MlpMemory memory = given != nullptr ? *given : MlpMemory();
  Slot slot;
  slot.d_activated = memory.d_activated;
  slot.pre = activations.take(compute, {B, T, pre_width}, label + ".pre");
  slot.activated = memory.activated ? memory.activated
                                    : activations.take(compute, {B, T, F}, label + ".activated");
  slot.up_reduced = take_reduced(activations, inner, up_, label + ".up adapters");
  slot.up_amax = take_amax(activations, config_.group, up_, label + ".up amax");
  // The second layer's product is not repeated for a piece, and leaves backward nothing.
  if (config_.mlp_rows == 0) {
    slot.down_reduced = take_reduced(activations, inner, down_, label + ".down adapters");
    slot.down_amax = take_amax(activations, config_.group, down_, label + ".down amax");
  }
  if (config_.split_backward) {
    slot.dy = activations.take(compute, config_.group.stream_shape(spec.B, spec.T, config_.width),
                               label + ".dy");
  }
  return slot;
}

Mlp::Slot Mlp::Slot::for_piece(Dim rows) const {
  return {.pre = first_rows(pre, rows),
          .activated = first_rows(activated, rows),
          .dy = {},
          .up_reduced = first_rows(up_reduced, rows),
          .down_reduced = {},
          .up_amax = up_amax,
          .down_amax = {},
          .d_activated = first_rows(d_activated, rows)};
}

SublayerSlot Mlp::for_tokens(const SublayerSlot& slot, const TokenCount& count) const {
  const auto& all = slot_as<Slot>(slot);
  const bool fits = count.B * count.T <= all.pre.rows();
  Slot out;
  out.pre = fits ? nn::for_tokens(all.pre, count) : all.pre;
  out.activated = fits ? nn::for_tokens(all.activated, count) : all.activated;
  return out;
}

void Mlp::activate(Context& ctx, const Slot& slot) const {
  if (ops::is_gated(config_.activation)) {
    ops::gated_forward(ctx, config_.activation, slot.pre, slot.activated,
                       Fp8Product::amax_of_input(slot.down_amax));
  } else {
    ops::activation_forward(ctx, config_.activation, slot.pre, slot.activated);
  }
}

LinearPass Mlp::linear_pass(Adapted linear, const BatchInfo& batch, const Scratch& scratch,
                            const Slot& slot) const {
  const bool is_down = linear == Adapted::down;
  const int copy = place_.branch == 1 ? 0 : place_.branch + 1;
  const std::uint32_t site = adapter_site(place_.layer, static_cast<int>(linear), copy);
  return {.dropout = adapter_dropout(config_, site, is_down ? config_.ffn_width : 0, batch),
          .reduced = is_down ? slot.down_reduced : slot.up_reduced,
          .reduced_gradient = scratch.adapter_gradient,
          .rounded_gradient = scratch.rounded_gradient,
          .amax = is_down ? slot.down_amax : slot.up_amax};
}

/// The amax of values that a gated activation wrote, which leaves it behind.
ops::Fp8Amax Mlp::activated_amax() const {
  return ops::is_gated(config_.activation) ? ops::Fp8Amax::given : ops::Fp8Amax::found;
}

/// Calls work(piece) for pieces of `rows` rows of the stream that the slot is large enough for.
/// Their sizes differ by one row at most, so that none is much slower than the others.
template <class Work>
void Mlp::for_pieces(Dim rows, const Slot& slot, const Scratch& scratch, Work&& work) const {
  const Dim ranks = config_.group.cuts_rows() ? config_.group.size() : 1;
  const Dim most = std::max<Dim>(1, slot.pre.rows() / ranks);
  const Dim pieces = (rows + most - 1) / most;
  for (Dim i = 0; i < pieces; ++i) {
    const Dim begin = rows * i / pieces;
    const Dim count = rows * (i + 1) / pieces - begin;
    work(Piece{begin, count, slot.for_piece(count * ranks), scratch.for_piece(count * ranks)});
  }
}

void Mlp::forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& values,
                  View y) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kFfnComponent);
  if (config_.mlp_rows == 0) return forward_at_once(ctx, x, pass, slot, y);
  Fp8Weights weights = pass.fp8_weights;
  for_pieces(x.rows(), slot, pass.scratch, [&](const Piece& piece) {
    forward_at_once(ctx, piece.of(x),
                    {.rope = pass.rope,
                     .batch = pass.batch,
                     .scratch = piece.scratch,
                     .texts = pass.texts,
                     .fp8_weights = weights},
                    piece.slot, piece.of(y));
    if (weights == Fp8Weights::renewed) weights = Fp8Weights::kept;
  });
}

bool Mlp::repeat(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& slot) const {
  if (config_.mlp_rows > 0) return true;
  if (config_.adapter || config_.fp8) return false;  // reduced inputs, amaxes of inputs
  const Scope scope(ctx.recorder(), kFfnComponent);
  expand(ctx, x, pass, slot_as<Slot>(slot));
  return true;
}

/// The first layer and the activation, of all rows of x if they are cut.
void Mlp::expand(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  const LinearPass of_up =
      pass.with_fp8_weights(linear_pass(Adapted::up, pass.batch, pass.scratch, slot));
  if (ops::is_gated(config_.activation) && pass.texts) {
    up_.forward_gated(ctx, group.gather(ctx, x, gathered), config_.activation, slot.pre,
                      slot.activated, of_up);
  } else if (ops::is_gated(config_.activation)) {
    up_.forward_gathered(ctx, group, x, gathered, slot.pre, of_up);
    activate(ctx, slot);
  } else {
    up_.forward_activated(ctx, group.gather(ctx, x, gathered), config_.activation, slot.pre,
                          slot.activated, of_up);
  }
}

void Mlp::forward_at_once(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot,
                          View y) const {
  expand(ctx, x, pass, slot);
  LinearPass of_down =
      pass.with_fp8_weights(linear_pass(Adapted::down, pass.batch, pass.scratch, slot));
  if (!pass.texts) of_down.input_amax = activated_amax();
  const TensorGroup& group = config_.group;
  down_.forward_summed(ctx, group, slot.activated, group.term(y, pass.scratch.partial), y, of_down);
}

bool Mlp::describe(int branch, const ForwardPass& /*pass*/, const SublayerSlot& slot,
                   ops::DecodeBlock& block, ops::DecodeStream& stream) const {
  const std::optional<ops::BlockWeights> up = up_.product();
  const std::optional<ops::BlockWeights> down = down_.product();
  if (branch != 1 || !up || !down || !config_.group.is_alone()) return false;
  stream.activated = slot_as<Slot>(slot).activated;
  block.up = *up;
  block.activation = config_.activation;
  block.down = *down;
  return true;
}

View Mlp::gradient_of_pre(BackwardPart part, const Slot& slot) const {
  // A whole backward has no more use for the activated values, and a product runs faster into
  // memory that it does not read; the weight gradients of a later half need them.
  const bool free = part == BackwardPart::both && !ops::is_gated(config_.activation);
  return free ? slot.activated : slot.pre;
}

/// The gradient of the first layer's bias, if the product that takes the activation's derivative
/// adds it up.
View Mlp::activated_bias_gradient(const BackwardPass& pass, const Slot& slot) const {
  const bool sums = pass.part == BackwardPart::both && !slot.d_activated;
  return sums ? up_.bias_gradient() : View();
}

/// dy, gathered if rows are cut, -> d_pre, through the second layer and the activation, and the
/// second layer's gradients if they are asked for. They go first if the product takes the
/// activation's derivative, as d_pre may have the memory of its input.
void Mlp::backward_activation(Context& ctx, CView dy, const BackwardPass& pass, const Slot& slot,
                              const ops::ActivationGradients& gradients) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  const View d_activated = slot.d_activated;
  const bool both = pass.part == BackwardPart::both;
  if (!d_activated) {
    const CView all_dy = group.gather(ctx, dy, gathered);
    if (both) {
      down_.backward_weight(ctx, all_dy, slot.activated, pass.accumulate,
                            {.skips_bias = pass.skips_output_biases});
    }
    return down_.backward_input_activated(ctx, all_dy, slot.pre, config_.activation, gradients);
  }
  LinearPass of_down = down_.backward_input_gathered(
      ctx, group, dy, gathered, d_activated,
      pass.before_weights(linear_pass(Adapted::down, pass.batch, pass.scratch, slot)));
  of_down.skips_bias = pass.skips_output_biases;
  if (both) {
    down_.backward_weight(ctx, group.cuts_rows() ? CView(gathered) : dy, slot.activated,
                          pass.accumulate, of_down);
  }
  if (ops::is_gated(config_.activation)) {
    ops::gated_backward(ctx, config_.activation, slot.pre, d_activated, gradients.dpre,
                        Fp8Product::amax_of_gradient(slot.up_amax));
  } else {
    ops::activation_backward(ctx, config_.activation, slot.pre, d_activated, gradients.dpre);
  }
}

void Mlp::backward(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                   const SublayerSlot& values, View dx) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kFfnComponent);
  if (pass.part == BackwardPart::weight) return backward_weight(ctx, x, pass, slot);
  if (config_.mlp_rows == 0) return backward_at_once(ctx, dy, x, pass, slot, dx);
  for_pieces(x.rows(), slot, pass.scratch, [&](const Piece& piece) {
    expand(ctx, piece.of(x),
           {.rope = pass.rope,
            .batch = pass.batch,
            .scratch = piece.scratch,
            .fp8_weights = Fp8Weights::kept},
           piece.slot);
    backward_at_once(
        ctx, piece.of(dy), piece.of(x),
        {pass.rope, pass.batch, piece.scratch, piece.begin == 0 ? pass.accumulate : Accumulate::yes,
         pass.part, pass.skips_output_biases},
        piece.slot, dx ? piece.of(dx) : View());
  });
}

void Mlp::backward_at_once(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                           const Slot& slot, View dx) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  if (pass.part == BackwardPart::input) ops::cast(ctx, dy, slot.dy);
  if (config_.recompute == Recompute::selective) activate(ctx, slot);
  const View d_pre = gradient_of_pre(pass.part, slot);
  const View up_bias = activated_bias_gradient(pass, slot);
  backward_activation(ctx, dy, pass, slot, {d_pre, up_bias, pass.accumulate});
  comm::Ticket rows = 0;
  if (pass.part == BackwardPart::both) rows = group.start_gather(ctx, x, gathered);
  LinearPass of_up = linear_pass(Adapted::up, pass.batch, pass.scratch, slot);
  of_up.gradient_amax = activated_amax();
  of_up = pass.before_weights(of_up);
  TensorGroup::Sums sums;
  if (dx) {
    const View term = group.term(dx, pass.scratch.partial);
    const Linear::SummedPass summed = up_.backward_input_summed(ctx, group, d_pre, term, dx, of_up);
    of_up = summed.pass;
    sums = summed.sums;
  }
  of_up.skips_bias = static_cast<bool>(up_bias);
  if (pass.part == BackwardPart::both) {
    group.wait(ctx, rows);
    up_.backward_weight(ctx, d_pre, group.cuts_rows() ? CView(gathered) : x, pass.accumulate,
                        of_up);
  }
  group.wait(ctx, sums);
}

void Mlp::backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  down_.backward_weight(ctx, group.gather(ctx, slot.dy, gathered), slot.activated, pass.accumulate,
                        linear_pass(Adapted::down, pass.batch, pass.scratch, slot));
  up_.backward_weight(ctx, slot.pre, group.gather(ctx, x, gathered), pass.accumulate,
                      linear_pass(Adapted::up, pass.batch, pass.scratch, slot));
}

ActivationSpec mlp_spec(const BlockConfig& config, const ActivationSpec& spec) {
  if (config.mlp_rows == 0) return spec;
  const Dim ranks = config.group.cuts_rows() ? config.group.size() : 1;
  const Dim stream_rows = spec.B * spec.T / ranks;
  const Dim most = std::max<Dim>(1, config.mlp_rows / ranks);
  const Dim pieces = (stream_rows + most - 1) / most;
  ActivationSpec piece = spec;
  piece.B = 1;
  piece.T = (stream_rows + pieces - 1) / pieces * ranks;
  return piece;
}

namespace {

Dim mlp_gradient_bytes(const BlockConfig& config, const ActivationSpec& spec) {
  const ActivationSpec inner = mlp_spec(config, spec);
  const Dim ffn_width = config.ffn_width / config.group.size();
  const Dim pre_width = ops::is_gated(config.activation) ? 2 * ffn_width : ffn_width;
  return std::max(Fp8Product::kept_bytes(config.fp8, config.width, spec.B * spec.T),
                  Fp8Product::kept_bytes(config.fp8, pre_width, inner.B * inner.T));
}

SublayerCounts count_mlp(const BlockConfig& config, Dim /*tokens*/) {
  const Dim first_matrices = ops::is_gated(config.activation) ? 2 : 1;
  SublayerCounts out;
  out.matrices = (first_matrices + 1) * config.width * config.ffn_width;
  if (config.bias) out.vectors = first_matrices * config.ffn_width + config.width;
  return out;
}

}  // namespace

const SublayerType kMlp = {
    .name = "mlp",
    .make = [](param::ParamStore& params, const std::string& name, const BlockConfig& config,
               SublayerPlace place) -> std::unique_ptr<Sublayer> {
      return std::make_unique<Mlp>(params, name, config, place);
    },
    .plan_memory = plan_mlp_memory,
    .rounded_gradient_bytes = mlp_gradient_bytes,
    .count = count_mlp};

}  // namespace hyperslab::nn
