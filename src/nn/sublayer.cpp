// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/sublayer.hpp"

namespace hyperslab::nn {

ops::Dropout on_stream(const TensorGroup& group, const ContextGroup& context, ops::Dropout dropout,
                       CView x) {
  dropout = context.part_of(dropout);
  if (!group.cuts_rows() || !dropout.active()) return dropout;
  const Dim samples = std::max<Dim>(1, dropout.sample_position.numel());
  dropout.elements_per_sample = x.numel() * group.size() / samples;
  dropout.first_element = group.rank() * x.numel();
  return dropout;
}

ops::Dropout adapter_dropout(const BlockConfig& config, std::uint32_t site, Dim cut_columns,
                             const BatchInfo& batch) {
  if (!config.adapter || !batch.dropout) return {};
  ops::Dropout dropout = {static_cast<float>(config.adapter.dropout), config.seed, site,
                          batch.sample_position, batch.state};
  dropout = config.context_group.part_of(dropout);
  if (cut_columns == 0 || config.group.is_alone()) return dropout;
  dropout.total_columns = cut_columns;
  dropout.first_column = config.group.rank() * (cut_columns / config.group.size());
  return dropout;
}

View take_reduced(Arena& activations, const ActivationSpec& spec, const Linear& linear,
                  const std::string& label) {
  const Dim ranks = linear.adapter_ranks();
  return ranks == 0 ? View() : activations.take(spec.compute, {spec.B, spec.T, ranks}, label);
}

View take_amax(Arena& activations, const TensorGroup& group, const Linear& linear,
               const std::string& label) {
  const bool keeps = linear.keeps_amax() && group.is_alone();
  return keeps ? activations.take(DType::f32, {Fp8Product::kAmaxes}, label) : View();
}

SublayerMemory Scratch::of(const SublayerType* type) const {
  for (const auto& [kind, memory] : sublayers) {
    if (kind == type) return memory;
  }
  return {};
}

Scratch Scratch::for_tokens(const TokenCount& count) const {
  Scratch out;
  out.delta = nn::for_tokens(delta, count);
  out.sublayer = nn::for_tokens(sublayer, count);
  return out;
}

Scratch Scratch::for_piece(Dim rows) const {
  Scratch out;
  out.gathered = first_rows(gathered, rows);
  out.partial = first_rows(partial, rows);
  out.adapter_gradient = first_rows(adapter_gradient, rows);
  out.rounded_gradient = rounded_gradient;
  return out;
}

}  // namespace hyperslab::nn
