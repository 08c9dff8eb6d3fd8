// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/dequantized_weights.hpp"

#include <algorithm>
#include <string>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "rooms.hpp"

namespace hyperslab::sharding {
namespace {

using param::QuantizedWeight;

constexpr Dim kAlignment = 128;  // elements of an operand in a room

ops::QuantizedMatrix take_matrix(Arena& arena, const param::QuantizationSpec& spec,
                                 const Shape& shape, const std::string& label) {
  const Dim M = shape[0];
  const Dim K = shape[1];
  const Dim group = spec.group_of(K);
  const auto take = [&](DType dtype, const Shape& dims, const char* array) {
    return arena.take(dtype, dims, label + array);
  };
  ops::QuantizedMatrix matrix = {spec.format, group, shape, {}, {}};
  matrix.codes = take(DType::u8, {M, spec.format == ops::WeightFormat::int8 ? K : K / 2}, ".codes");
  switch (spec.format) {
    case ops::WeightFormat::int8: matrix.scales = take(DType::f32, {M}, ".scales"); break;
    case ops::WeightFormat::int4:
      matrix.scales = take(DType::f16, {M, K / group}, ".scales");
      break;
    case ops::WeightFormat::nf4:
      matrix.scales = take(DType::u8, {M, K / group}, ".scales");
      const Dim blocks = round_up(M * K / group, ops::kScaleBlock) / ops::kScaleBlock;
      matrix.block_scales = take(DType::f32, {blocks}, ".block_scales");
      break;
  }
  return matrix;
}

std::string label_of(const QuantizedWeight& weight) {
  const std::string& name = weight.members.front()->name;
  return weight.members.size() == 1
             ? name
             : name + " and " + std::to_string(weight.members.size() - 1) + " more";
}

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

void DequantizedWeights::allocate(param::ParamStore& store, const Residence& residence,
                                  Arena& arena, DType compute) {
  by_unit_.resize(static_cast<std::size_t>(store.units()));
  for (QuantizedWeight& weight : store.quantized_weights()) {
    by_unit_[static_cast<std::size_t>(weight.unit)].push_back(&weight);
    const bool takes_codes = weight.spec.activations != ops::ActivationFormat::none;
    if (weight.frozen || takes_codes) {
      weight.matrix = take_matrix(arena, weight.spec, weight.shape, label_of(weight));
    } else if (weight.row_ranks != nullptr) {
      weight.matrix.scales =
          arena.take(DType::f32, {weight.shape[0]}, label_of(weight) + ".scales");
    }
  }
  if (residence.present_rooms == 0) return;
  std::vector<Dim> sizes;  // by unit, elements
  for (const std::vector<QuantizedWeight*>& weights : by_unit_) {
    sizes.push_back(0);
    for (const QuantizedWeight* weight : weights) sizes.back() += padded_size(*weight);
  }
  std::vector<View> rooms =
      take_rooms(sizes, residence.present_rooms, arena, compute, "dequantized matrices");
  for (QuantizedWeight& weight : store.quantized_weights()) {
    View& room = rooms[static_cast<std::size_t>(weight.unit)];
    weight.dequantized = room.slice(0, weight.shape.numel()).reshaped(weight.shape);
    const Dim size = padded_size(weight);
    room = room.slice(size, room.numel() - size);
  }
}

bool DequantizedWeights::has(int unit) const {
  const std::vector<QuantizedWeight*>& weights = by_unit_[static_cast<std::size_t>(unit)];
  return !weights.empty() && weights.front()->dequantized;
}

void DequantizedWeights::write(Context& ctx, int unit) const {
  if (!has(unit)) return;
  for (const QuantizedWeight* weight : by_unit_[static_cast<std::size_t>(unit)]) {
    dequantize(ctx, *weight);
  }
}

void DequantizedWeights::set_rounding(bool rounds) {
  for (const std::vector<QuantizedWeight*>& weights : by_unit_) {
    for (QuantizedWeight* weight : weights) weight->rounds = rounds;
  }
}

/// The bytes of a unit's matrices are added up.
std::vector<NamedMovement> DequantizedWeights::movements(int microbatches) const {
  using Kind = layout::Step::Kind;
  std::vector<NamedMovement> all;
  for (int unit = 0; unit < static_cast<int>(by_unit_.size()); ++unit) {
    if (!has(unit)) continue;
    layout::Step agree = {Kind::agree_scales, mesh::Axis::tensor};
    layout::Step encode = {Kind::encode};
    layout::Step decode = {Kind::decode};
    for (const QuantizedWeight* weight : by_unit_[static_cast<std::size_t>(unit)]) {
      const ops::QuantizedMatrix& matrix = weight->matrix;
      decode.bytes += weight->dequantized.bytes();
      if (weight->frozen) continue;
      if (weight->row_ranks != nullptr) agree.bytes += matrix.scales.bytes();
      if (matrix.codes)
        encode.bytes += matrix.codes.bytes() + matrix.scales.bytes() + matrix.block_scales.bytes();
    }
    NamedMovement& moved = all.emplace_back(NamedMovement{"dequantized matrices",
                                                          unit,
                                                          unit,
                                                          {},
                                                          2 * microbatches,
                                                          "one unit ahead of forward and backward",
                                                          "the unit before it in the pass"});
    for (const layout::Step& step : {agree, encode, decode}) {
      if (step.bytes > 0) moved.steps.push_back(step);
    }
  }
  return all;
}

}  // namespace hyperslab::sharding
