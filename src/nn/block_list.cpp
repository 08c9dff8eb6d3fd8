// SPDX-License-Identifier: Apache-2.0
// The lists of branches by the place of norms, and what follows from a list alone.
#include <algorithm>
#include <optional>

#include "hyperslab/nn/attention.hpp"
#include "hyperslab/nn/block.hpp"
#include "hyperslab/nn/experts.hpp"
#include "hyperslab/nn/mlp.hpp"

namespace hyperslab::nn {

BlockList block_list(const BlockConfig& config, Dim layer) {
  const SublayerType* ffn = config.experts.at(layer) ? &kExperts : &kMlp;
  const ops::NormKind norm = config.norm;
  const ops::NormKind output = config.output_norm;
  if (!config.pre_norm)
    return {{.sublayer = &kAttention, .sum_norm = norm}, {.sublayer = ffn, .sum_norm = norm}};
  return {
      {.sublayer = &kAttention, .norm = norm, .output_norm = output, .with_next = config.parallel},
      {.sublayer = ffn, .norm = norm, .output_norm = output}};
}

BlockList all_branches(const BlockConfig& config) {
  std::optional<bool> first;
  BlockList all;
  for (Dim layer = 0; layer < config.layers; ++layer) {
    const bool has_experts = config.experts.at(layer);
    if (first == has_experts) continue;
    const BlockList list = block_list(config, layer);
    all.insert(all.end(), list.begin(), list.end());
    if (first) return all;
    first = has_experts;
  }
  return all;
}

SublayerCounts count_block(const BlockConfig& config, Dim layer, Dim tokens) {
  SublayerCounts sum;
  for (const BranchSpec& branch : block_list(config, layer)) {
    const SublayerCounts counts = branch.sublayer->count(config, tokens);
    sum.matrices += counts.matrices;
    sum.idle += counts.idle;
    sum.vectors += counts.vectors;
    sum.pairs += counts.pairs;
    for (const ops::NormKind kind : {branch.norm, branch.output_norm, branch.sum_norm}) {
      sum.vectors += Norm::parameters({kind, config.width, config.norm_eps, config.bias});
    }
  }
  return sum;
}

namespace {

/// Memory of backward between a layer's products and inside sublayers.
void plan_training(Arena& arena, const BlockList& list, const BlockConfig& config,
                   const ActivationSpec& spec, Scratch& out) {
  if (config.adapter) {
    constexpr Dim kMostSideBySide = 3;  // query, key and value
    out.adapter_gradient = arena.take(
        spec.compute, {spec.B, spec.T, kMostSideBySide * config.adapter.rank}, "adapter gradient");
  }
  Dim rounded = 0;
  for (const BranchSpec& branch : list) {
    const SublayerType* type = branch.sublayer;
    if (!out.of(type).has_value()) {
      out.sublayers.emplace_back(type, type->plan_memory(arena, config, spec));
    }
    rounded = std::max(rounded, branch.sublayer->rounded_gradient_bytes(config, spec));
  }
  if (config.fp8 && !config.adapter && !config.split_backward && rounded > 0) {
    out.rounded_gradient = arena.take(DType::u8, {rounded}, "rounded gradient");
  }
}

}  // namespace

Scratch plan_scratch(Arena& arena, const BlockList& list, const BlockConfig& config,
                     const ActivationSpec& spec, bool training) {
  const auto& [B, T, compute, statistics] = spec;
  const Shape stream = config.group.stream_shape(B, T, config.width);
  const auto any = [&](auto is) { return std::ranges::any_of(list, is); };
  const bool joins = any([](const BranchSpec& branch) { return branch.with_next; });
  Scratch out;
  out.delta = arena.take(compute, stream, "delta");
  if (joins) out.sublayer = arena.take(compute, stream, "second sublayer");
  if (config.group.cuts_rows()) {
    out.gathered = arena.take(compute, {B, T, config.width}, "gathered rows");
    out.partial = arena.take(compute, {B, T, config.width}, "partial sums");
  }
  if (!training) return out;
  const auto norms = [](const BranchSpec& branch) { return branch.norm != ops::NormKind::none; };
  if (config.recompute == Recompute::selective && any(norms)) {
    out.norm_out = arena.take(compute, stream, "norm output");
  }
  out.d_mid = arena.take(compute, stream, "d_mid");
  if (joins ||
      any([](const BranchSpec& branch) { return branch.output_norm != ops::NormKind::none; })) {
    out.d_sublayer = arena.take(compute, stream, "d_sublayer");
  }
  if (config.dropout > 0 || config.drop_path > 0) {
    out.d_masked = arena.take(compute, stream, "d_masked");
  }
  plan_training(arena, list, config, spec, out);
  return out;
}

}  // namespace hyperslab::nn
