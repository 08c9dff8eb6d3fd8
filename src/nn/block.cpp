// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/block.hpp"

#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

namespace {

Norm::Options norm_options(const BlockConfig& config, ops::NormKind kind) {
  return {kind, config.width, config.norm_eps, config.bias};
}

float drop_path_of(const BlockConfig& config, int layer) {
  if (config.drop_path_rule == DropPathRule::constant) return config.drop_path;
  return config.drop_path * static_cast<float>(layer) /
         static_cast<float>(std::max(1, config.layers - 1));
}

/// "attention", of a second sublayer of its kind "attention2".
std::string name_of_branch(const BlockList& list, std::size_t branch) {
  const SublayerType* type = list[branch].sublayer;
  const auto before =
      std::ranges::count(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(branch), type,
                         &BranchSpec::sublayer);
  return std::string(type->name) + (before == 0 ? "" : std::to_string(before + 1));
}

void require_groups(const BlockList& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool joins = list[i].with_next || (i > 0 && list[i - 1].with_next);
    const bool plain =
        list[i].output_norm == ops::NormKind::none && list[i].sum_norm == ops::NormKind::none;
    require(!joins || plain, "branches that are added at once have no norms of outputs or sums");
    require(!list[i].with_next || i + 1 < list.size(), "a block's last branch has none after it");
  }
}

}  // namespace

// Bucket layouts keep the order of declaration: norms of outputs come last.
Block::Block(param::ParamStore& params, const std::string& name, const BlockConfig& config,
             int layer, const BlockList& list)
    : config_(config), layer_(layer), drop_path_(drop_path_of(config, layer)) {
  require_groups(list);
  const auto make_norm = [&](const std::string& norm, ops::NormKind kind) {
    return Norm(params, config.group, name + "." + norm, norm_options(config, kind));
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    Branch& branch = branches_.emplace_back();
    branch.spec = list[i];
    branch.name = name_of_branch(list, i);
    branch.norm_name = "norm" + std::to_string(i + 1);
    branch.norm = make_norm(branch.norm_name, list[i].norm);
    const bool has_both = list[i].norm != ops::NormKind::none && branch.norms_sum();
    branch.sum_norm = make_norm(branch.norm_name + (has_both ? "_sum" : ""), list[i].sum_norm);
    branch.sublayer = list[i].sublayer->make(params, name + "." + branch.name, config,
                                             {layer, static_cast<int>(i)});
  }
  for (Branch& branch : branches_) {
    branch.output_norm = make_norm(branch.name + "_norm", branch.spec.output_norm);
  }
}

bool Block::leaves_delta() const { return branches_.empty() || !branches_.back().norms_sum(); }

Block::Slot Block::plan(Arena& activations, const Scratch& scratch, const ActivationSpec& spec,
                        bool adds, const std::string& label) const {
  const auto& [B, T, compute, statistics] = spec;
  const Shape stream = config_.group.stream_shape(B, T, config_.width);
  Slot slot(branches_.size());
  for (std::size_t i = 0; i < slot.size(); ++i) {
    const Branch& branch = branches_[i];
    const std::string norm_label = label + "." + branch.norm_name;
    const std::string name = label + "." + branch.name;
    slot[i].norm = branch.norm.plan(
        activations, {stream, compute, statistics, adds, scratch.norm_out}, norm_label);
    slot[i].sublayer =
        branch.sublayer->plan(activations, scratch.of(branch.spec.sublayer), spec, name);
    if (branch.norms_output()) {
      slot[i].output = activations.take(compute, stream, name + " output");
      slot[i].output_norm = branch.output_norm.plan(
          activations, {stream, compute, statistics, false, scratch.delta}, name + "_norm");
    }
    adds = !branch.spec.with_next;
    if (!branch.norms_sum()) continue;
    slot[i].sum_norm =
        branch.sum_norm.plan(activations, {stream, compute, statistics, true}, norm_label);
    adds = false;
  }
  return slot;
}

Block::Slot Block::for_tokens(const Slot& slot, const TokenCount& count) const {
  Slot out;
  for (std::size_t i = 0; i < slot.size(); ++i) {
    out.push_back({.norm = slot[i].norm.for_tokens(count),
                   .sublayer = branches_[i].sublayer->for_tokens(slot[i].sublayer, count),
                   .output = nn::for_tokens(slot[i].output, count),
                   .output_norm = slot[i].output_norm.for_tokens(count),
                   .sum_norm = slot[i].sum_norm.for_tokens(count)});
  }
  return out;
}

void Block::plan_texts(Arena& memory, const TextRoom& room, DType compute,
                       const std::string& label) {
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    const std::string twin = i == 0 ? "" : "." + branches_[i].name;
    branches_[i].sublayer->plan_texts(memory, room, compute, label + twin);
  }
}

void Block::drop(Context& ctx, const BatchInfo& batch, std::size_t branch, CView x, View y) const {
  if (!batch.dropout) return;
  const int usual = branch < 2 ? static_cast<int>(branch) : 0;
  const int twin = branch < 2 ? 0 : static_cast<int>(branch);
  ops::Dropout dropout = {config_.dropout, config_.seed, dropout_site(layer_, usual, twin),
                          batch.sample_position, batch.state};
  if (dropout.active())
    ops::dropout(ctx, on_stream(config_.group, config_.context_group, dropout, x), x, y);
  const CView dropped = dropout.active() ? CView(y) : x;
  dropout.probability = drop_path_;
  if (dropout.active())
    ops::drop_path(ctx, on_stream(config_.group, config_.context_group, dropout, x), dropped, y);
}

CView Block::masked(Context& ctx, const BatchInfo& batch, std::size_t branch,
                    const Scratch& scratch, CView d) const {
  if (!batch.dropout || !drops()) return d;
  drop(ctx, batch, branch, d, scratch.d_masked);
  return scratch.d_masked;
}

/// y: the branch's term of the stream.
void Block::run_branch(Context& ctx, std::size_t i, const ForwardPass& pass, Slot& slot,
                       View y) const {
  const Branch& branch = branches_[i];
  BranchSlot& values = slot[i];
  const View output = branch.norms_output() ? values.output : y;
  branch.sublayer->forward(ctx, values.norm.y(), pass, values.sublayer, output);
  if (branch.norms_output()) branch.output_norm.forward(ctx, output, {}, values.output_norm);
  drop(ctx, pass.batch, i, y, y);
}

/// Ends a repeated pass at the last sublayer, whose output is of use to the next block alone.
/// False: the pass goes on.
bool Block::ends_early(Context& ctx, std::size_t i, const ForwardPass& pass,
                       const Slot& slot) const {
  const Branch& branch = branches_[i];
  return pass.repeated && i + 1 == branches_.size() && branch.is_plain() &&
         branch.sublayer->repeat(ctx, slot[i].norm.y(), pass, slot[i].sublayer);
}

/// One token on its cache by one op. Returns false if that does not do all that forward() does.
bool Block::forward_token(Context& ctx, ResidualStream in, const ForwardPass& pass,
                          Slot& slot) const {
  const bool drops_here = drops() && pass.batch.dropout;
  if (!pass.texts || in.residual.numel() != config_.width || drops_here || slot.size() != 2) {
    return false;
  }
  ops::DecodeBlock block;
  ops::DecodeStream stream = {.residual = in.residual,
                              .delta = in.delta,
                              .attention_sum = in.delta ? slot[0].norm.sum : View(),
                              .mlp_sum = slot[1].norm.sum,
                              .qkv = {},
                              .activated = {},
                              .out = pass.scratch.delta};
  for (std::size_t i = 0; i < 2; ++i) {
    const Branch& branch = branches_[i];
    const std::optional<ops::BlockNorm> norm = branch.norm.operands();
    if (!norm || !branch.is_plain() ||
        !branch.sublayer->describe(static_cast<int>(i), pass, slot[i].sublayer, block, stream)) {
      return false;
    }
    (i == 0 ? block.attention_norm : block.mlp_norm) = *norm;
  }
  if (!ops::decode_block_forward(ctx, block, stream)) return false;
  slot[0].norm.x = in.delta ? CView(slot[0].norm.sum) : in.residual;
  slot[1].norm.x = slot[1].norm.sum;
  return true;
}

ResidualStream Block::forward(Context& ctx, ResidualStream in, const ForwardPass& pass,
                              Slot& slot) const {
  const View delta = pass.scratch.delta;
  if (forward_token(ctx, in, pass, slot)) return {slot.back().norm.x, delta};
  ResidualStream stream = in;
  for (std::size_t i = 0; i < slot.size(); ++i) {
    const Branch& branch = branches_[i];
    BranchSlot& values = slot[i];
    branch.norm.forward(ctx, stream.residual, stream.delta, values.norm);
    if (ends_early(ctx, i, pass, slot)) return {};
    run_branch(ctx, i, pass, slot, is_held(i) ? pass.scratch.sublayer : delta);
    if (is_held(i)) ops::add(ctx, delta, pass.scratch.sublayer, delta);
    stream = {values.norm.x, branch.spec.with_next ? CView() : CView(delta)};
    if (!branch.norms_sum()) continue;
    branch.sum_norm.forward(ctx, stream.residual, stream.delta, values.sum_norm);
    stream = {values.sum_norm.y(), {}};
  }
  return stream;
}

void Block::backward(Context& ctx, const BackwardPass& pass, const Slot& slot, View d) const {
  for (std::size_t i = slot.size(); i-- > 0;) {
    if (pass.part == BackwardPart::weight) {
      branches_[i].sublayer->backward(ctx, {}, slot[i].norm.y(), pass, slot[i].sublayer, {});
    } else {
      backward_branch(ctx, pass, i, slot, d);
    }
  }
}

/// The biases of the outputs of branch `second` and of the one before, around the norm between
/// them, if both enter the stream as they are.
StreamBiases Block::stream_biases(const BackwardPass& pass, std::size_t second) const {
  const bool drops_here = drops() && pass.batch.dropout;
  if (second >= branches_.size() || pass.part != BackwardPart::both || drops_here ||
      config_.group.cuts_rows()) {
    return {};
  }
  const auto& [first, last] = std::tie(branches_[second - 1], branches_[second]);
  if (!last.norm.trains() || !first.is_plain() || !last.is_plain() || is_held(second - 1))
    return {};
  const StreamBiases biases = {.before = first.sublayer->output_bias_gradient(),
                               .after = last.sublayer->output_bias_gradient()};
  return biases.before && biases.after ? biases : StreamBiases();
}

void Block::backward_branch(Context& ctx, const BackwardPass& pass, std::size_t i, const Slot& slot,
                            View d) const {
  const Branch& branch = branches_[i];
  const BranchSlot& values = slot[i];
  const Scratch& scratch = pass.scratch;
  if (branch.norms_sum()) {
    branch.sum_norm.backward(ctx, values.sum_norm, d, Accumulate::no, d, pass.accumulate);
  }
  CView dy = masked(ctx, pass.batch, i, scratch, d);
  if (branch.norms_output()) {
    branch.output_norm.backward(ctx, values.output_norm, dy, Accumulate::no, scratch.d_sublayer,
                                pass.accumulate);
    dy = scratch.d_sublayer;
  }
  if (config_.recompute == Recompute::selective) branch.norm.recompute(ctx, values.norm);
  // The norm of every second branch sums the biases of two.
  const bool is_second = i % 2 == 1;
  const StreamBiases biases = stream_biases(pass, is_second ? i : i + 1);
  BackwardPass of_sublayer = pass;
  of_sublayer.skips_output_biases = static_cast<bool>(biases.before);
  // With adapters the embedding is frozen: the model's first input needs no gradient.
  const View dx = i == 0 && layer_ == 0 && config_.adapter ? View() : scratch.d_mid;
  branch.sublayer->backward(ctx, dy, values.norm.y(), of_sublayer, values.sublayer, dx);
  if (!dx) return;
  if (!branch.spec.with_next && !is_held(i)) {
    return branch.norm.backward(ctx, values.norm, dx, Accumulate::yes, d, pass.accumulate,
                                is_second ? biases : StreamBiases());
  }
  const Accumulate others = branch.spec.with_next ? Accumulate::yes : Accumulate::no;
  branch.norm.backward(ctx, values.norm, dx, others, scratch.d_sublayer, pass.accumulate);
  if (!is_held(i)) ops::add(ctx, d, scratch.d_sublayer, d);
}

}  // namespace hyperslab::nn
