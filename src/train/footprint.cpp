// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/footprint.hpp"

#include <fmt/format.h>

#include "hyperslab/ops/quantized.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::train {
namespace {

std::int64_t signed_bytes(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

/// Matrices that are stored as values, and those that are stored quantized instead.
std::int64_t matrix_bytes(const param::ParamStore& store) {
  std::size_t bytes = 0;
  for (const param::Param& param : store.params()) {
    if (param.role == param::Role::matrix && param.value) bytes += param.value.bytes();
  }
  for (const param::QuantizedWeight& weight : store.quantized_weights()) {
    if (!weight.frozen || weight.members.front()->role != param::Role::matrix) continue;
    const Dim group = weight.spec.group_of(weight.shape[1]);
    bytes += ops::quantized_bytes(weight.spec.format, group, weight.shape).total();
  }
  return signed_bytes(bytes);
}

std::string format_text(const param::QuantizationSpec& spec) {
  if (spec.format != ops::WeightFormat::int4) return std::string(ops::name_of(spec.format));
  return fmt::format("int4 groups of {}", spec.group);
}

}  // namespace

Footprint footprint(const Trainer& trainer) {
  const model::MemoryPlan plan = trainer.inspection().memory_plan();
  return {signed_bytes(plan.parameters), matrix_bytes(trainer.stage().params()),
          signed_bytes(plan.total())};
}

Footprint footprint(comm::World& world, const Trainer& trainer) {
  const Footprint mine = footprint(trainer);
  const auto sum = [&](std::int64_t bytes) {  // exact: far below 2^53
    return static_cast<std::int64_t>(world.sum(static_cast<double>(bytes)));
  };
  return {sum(mine.parameters), sum(mine.matrices), world.max(mine.rank_peak)};
}

std::string quantization_text(const Config& config) {
  if (!config.quantization) return "none";
  const param::QuantizationSpec spec = config.quantization.spec();
  const bool rounds_inputs = spec.activations == ops::ActivationFormat::dynamic_int8;
  const auto [embeddings, head] = rounded_tables(config);
  return format_text(spec) + (rounds_inputs ? ", dynamic-int8 activations" : "") +
         (embeddings && head ? ", embeddings and head"
          : embeddings       ? ", embeddings"
          : head             ? ", head"
                             : "");
}

std::string frozen_format_text(const Config& config) {
  switch (config.model.frozen_format) {
    case param::StorageFormat::compute: return std::string(name_of(config.precision.compute));
    case param::StorageFormat::int4: return format_text({.format = ops::WeightFormat::int4});
    default: return std::string(param::name_of(config.model.frozen_format));
  }
}

}  // namespace hyperslab::train
