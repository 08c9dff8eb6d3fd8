// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/converted_weights.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "quantized_arrays.hpp"
#include "rooms.hpp"

namespace hyperslab::sharding {
namespace {

using param::QuantizedWeight;

constexpr Dim kAlignment = 128;  // elements of an operand in a room

/// matrix.scales of rows of which other ranks hold parts.
void find_scales(Context& ctx, const QuantizedWeight& weight, CView from) {
  ops::int8_row_scales(ctx, from, weight.matrix.scales);
  const View& found = weight.matrix.scales;
  const View bits(found.raw(), DType::i32, found.device(), found.shape());
  weight.row_ranks->wait(ctx, ctx.stream(),
                         weight.row_ranks->all_reduce(ctx.stream(), bits, comm::ReduceOp::max));
}

Dim padded_size(const QuantizedWeight& weight) {
  return round_up(weight.shape.numel(), kAlignment);
}

/// Writes weight.dequantized.
void dequantize(Context& ctx, const QuantizedWeight& weight) {
  const ops::QuantizedMatrix& matrix = weight.matrix;
  const View& to = weight.dequantized;
  if (weight.frozen) return ops::dequantize(ctx, ops::as_const(matrix), to);
  const View& first = weight.members.front()->value;
  const CView from = View(first.raw(), first.dtype(), first.device(), weight.shape);
  if (!weight.rounds) return ops::cast(ctx, from, to);
  const bool is_scaled = weight.row_ranks != nullptr;
  if (is_scaled) find_scales(ctx, weight, from);
  if (!matrix.codes) {
    const param::QuantizationSpec& spec = weight.spec;
    return is_scaled
               ? ops::fake_quantize_scaled(ctx, from, matrix.scales, to)
               : ops::fake_quantize(ctx, spec.format, spec.group_of(weight.shape[1]), from, to);
  }
  is_scaled ? ops::quantize_scaled(ctx, from, matrix) : ops::quantize(ctx, from, matrix);
  ops::dequantize(ctx, ops::as_const(matrix), to);
}

}  // namespace

void ConvertedWeights::allocate(param::ParamStore& store, const Residence& residence, Arena& arena,
                                DType compute) {
  store_ = &store;
  std::vector<Dim> sizes(static_cast<std::size_t>(store.units()), 0);  // elements
  for (QuantizedWeight& weight : store.quantized_weights()) {
    sizes[static_cast<std::size_t>(weight.unit)] += padded_size(weight);
    if (weight.frozen) continue;
    if (weight.spec.activations != ops::ActivationFormat::none) {
      weight.matrix = quantized_arrays(weight, arena);
    } else if (weight.row_ranks != nullptr) {
      weight.matrix.scales =
          arena.take(DType::f32, {weight.shape[0]}, label_of(weight) + ".scales");
    }
  }
  if (residence.present_rooms == 0) return;
  std::vector<View> rooms =
      take_rooms(sizes, residence.present_rooms, arena, compute, "dequantized matrices");
  for (QuantizedWeight& weight : store.quantized_weights()) {
    View& room = rooms[static_cast<std::size_t>(weight.unit)];
    weight.dequantized = room.slice(0, weight.shape.numel()).reshaped(weight.shape);
    const Dim size = padded_size(weight);
    room = room.slice(size, room.numel() - size);
  }
  for (param::KeptFp8& kept : store.kept_fp8()) {
    if (kept.bytes == 0) continue;
    const std::string& name = kept.matrix.members().front()->name;
    kept.memory = arena.take(DType::u8, {kept.bytes},
                             name + (kept.gathered ? " transposed in 8 bits" : " in 8 bits"));
  }
}

bool ConvertedWeights::has(int unit) const {
  return std::ranges::any_of(store_->quantized_weights(), [&](const QuantizedWeight& weight) {
    return weight.unit == unit && weight.dequantized;
  });
}

void ConvertedWeights::write(Context& ctx, int unit) const {
  for (const QuantizedWeight& weight : store_->quantized_weights()) {
    if (weight.unit == unit && weight.dequantized) dequantize(ctx, weight);
  }
}

void ConvertedWeights::set_rounding(bool rounds) {
  for (QuantizedWeight& weight : store_->quantized_weights()) weight.rounds = rounds;
}

/// The bytes of a unit's matrices are added up.
std::vector<NamedMovement> ConvertedWeights::movements(int microbatches, int renewals,
                                                       bool is_ahead) const {
  using Kind = layout::Step::Kind;
  std::vector<NamedMovement> all;
  const auto add = [&](const NamedMovement& moved, const layout::Step& step) {
    if (all.empty() || all.back().what != moved.what || all.back().first_unit != moved.first_unit) {
      all.push_back(moved);
    }
    std::vector<layout::Step>& steps = all.back().steps;
    auto place = std::ranges::lower_bound(steps, step.kind, {}, &layout::Step::kind);
    if (place == steps.end() || place->kind != step.kind) {
      place = steps.insert(place, {step.kind, step.axes, 0});
    }
    place->bytes += step.bytes;
  };
  const auto starts = is_ahead ? "one unit ahead of forward and backward" : "in each pass";
  const auto behind = is_ahead ? "the unit before it in the pass" : "";
  for (const QuantizedWeight& weight : store_->quantized_weights()) {
    const int unit = weight.unit;
    const NamedMovement moved = {"dequantized matrices", unit,   unit,  {},
                                 2 * microbatches,       starts, behind};
    const ops::QuantizedMatrix& matrix = weight.matrix;
    if (!weight.frozen && weight.row_ranks != nullptr) {
      add(moved, {Kind::agree_scales, mesh::Axis::tensor, matrix.scales.bytes()});
    }
    if (!weight.frozen && matrix.codes) {
      const auto bytes = ops::quantized_bytes(matrix.format, matrix.group, matrix.shape);
      add(moved, {Kind::encode, {}, bytes.total()});
    }
    add(moved, {Kind::decode, {}, weight.dequantized.bytes()});
  }
  for (const param::KeptFp8& kept : store_->kept_fp8()) {
    if (!kept.memory) continue;
    const int unit = kept.matrix.members().front()->unit;
    add({"FP8 matrices", unit, unit, {}, renewals, "with the forward pass of its unit", ""},
        {kept.gathered ? Kind::unpack : Kind::encode, {}, kept.memory.bytes()});
  }
  return all;
}

}  // namespace hyperslab::sharding
