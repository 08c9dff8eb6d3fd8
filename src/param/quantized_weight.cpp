// SPDX-License-Identifier: Apache-2.0
// Matrices that layers do not multiply by as they are stored.
#include "hyperslab/param/quantized_weight.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::param {
namespace {

constexpr Dim kAlignment = 128;  // elements of an operand in a buffer
constexpr int kBuffers = 2;
constexpr Dim kRoundedBytes = Dim{16} << 20;  // bytes of values that are rounded at once

ops::QuantizedMatrix rows_of(const ops::QuantizedMatrix& matrix, Dim first, Dim count) {
  ops::QuantizedMatrix rows = matrix;
  rows.shape = {count, matrix.shape[1]};
  rows.codes = matrix.codes.slice(first, count);
  rows.scales = matrix.scales.slice(first, count);
  if (matrix.block_scales) {
    const Dim scales = matrix.shape[1] / matrix.group;
    rows.block_scales =
        matrix.block_scales.slice(first * scales / ops::kScaleBlock,
                                  round_up(count * scales, ops::kScaleBlock) / ops::kScaleBlock);
  }
  return rows;
}

ops::QuantizedMatrix take_matrix(Arena& arena, const QuantizationSpec& spec, const Shape& shape,
                                 const std::string& label) {
  const Dim M = shape[0];
  const Dim K = shape[1];
  const Dim group = spec.group_of(K);
  ops::QuantizedMatrix matrix = {spec.format, group, shape, {}, {}};
  switch (spec.format) {
    case ops::WeightFormat::int8:
      matrix.codes = arena.take(DType::u8, {M, K}, label + ".codes");
      matrix.scales = arena.take(DType::f32, {M}, label + ".scales");
      break;
    case ops::WeightFormat::int4:
      matrix.codes = arena.take(DType::u8, {M, K / 2}, label + ".codes");
      matrix.scales = arena.take(DType::f16, {M, K / group}, label + ".scales");
      break;
    case ops::WeightFormat::nf4: {
      const Dim scales = M * K / group;
      matrix.codes = arena.take(DType::u8, {M, K / 2}, label + ".codes");
      matrix.scales = arena.take(DType::u8, {M, K / group}, label + ".scales");
      matrix.block_scales =
          arena.take(DType::f32, {round_up(scales, ops::kScaleBlock) / ops::kScaleBlock},
                     label + ".block_scales");
      break;
    }
  }
  return matrix;
}

std::string label_of(const QuantizedWeight& weight) {
  const std::string& name = weight.members.front()->name;
  return weight.members.size() == 1
             ? name
             : name + " and " + std::to_string(weight.members.size() - 1) + " more";
}

}  // namespace

View QuantizedWeight::values() const {
  const View first = members.front()->value;
  return {first.raw(), first.dtype(), first.device(), shape};
}

void QuantizedWeight::dequantize(Context& ctx) const {
  if (frozen) return ops::dequantize(ctx, ops::as_const(matrix), dequantized);
  const View from = values();
  if (!rounds) return ops::cast(ctx, from, dequantized);
  if (row_ranks != nullptr) find_scales(ctx, from);
  if (!matrix.codes) {
    return row_ranks != nullptr
               ? ops::fake_quantize_scaled(ctx, from, matrix.scales, dequantized)
               : ops::fake_quantize(ctx, spec.format, spec.group_of(shape[1]), from, dequantized);
  }
  row_ranks != nullptr ? ops::quantize_scaled(ctx, from, matrix) : ops::quantize(ctx, from, matrix);
  ops::dequantize(ctx, ops::as_const(matrix), dequantized);
}

/// matrix.scales of rows of which other ranks hold parts.
void QuantizedWeight::find_scales(Context& ctx, CView from) const {
  ops::int8_row_scales(ctx, from, matrix.scales);
  const View& found = matrix.scales;
  const View bits(found.raw(), DType::i32, found.device(), found.shape());
  row_ranks->wait(ctx, ctx.stream(),
                  row_ranks->all_reduce(ctx.stream(), bits, comm::ReduceOp::max));
}

Hyperslab QuantizedWeight::rounded_part(const Param& member) const {
  const Hyperslab& part = member.part;
  if (row_ranks == nullptr) return part;
  return {{part.offset[0], 0}, {part.count[0], member.global_shape[1]}};
}

Shape QuantizedWeight::rounded_shape() const {
  return {shape[0], rounded_part(*members.front()).count[1]};
}

void QuantizedWeight::for_rounded_rows(const std::function<void(Dim, Dim)>& body) const {
  // Groups of nf4 share a scale, also groups of several rows.
  const Dim step = matrix.block_scales
                       ? ops::kScaleBlock / std::gcd(ops::kScaleBlock, shape[1] / matrix.group)
                       : 1;
  const Dim fitting = kRoundedBytes / (rounded_shape()[1] * static_cast<Dim>(sizeof(float)));
  const Dim most = std::max(step, fitting / step * step);
  for (Dim first = 0; first < shape[0]; first += most) {
    body(first, std::min(most, shape[0] - first));
  }
}

std::vector<QuantizedWeight::MemberRows> QuantizedWeight::members_in(Dim first, Dim count) const {
  std::vector<MemberRows> found;
  Dim begin = 0;
  for (Param* member : members) {
    const Hyperslab part = rounded_part(*member);
    const Dim from = std::max(begin, first);
    const Dim to = std::min(begin + part.count[0], first + count);
    if (from < to) found.push_back({member, part.narrow(0, from - begin, to - from), from - first});
    begin += member->stored_rows;
  }
  return found;
}

void QuantizedWeight::round(Context& ctx, CView values, Dim first) const {
  const Dim count = values.shape()[0];
  const ops::QuantizedMatrix rows = rows_of(matrix, first, count);
  if (row_ranks == nullptr) return ops::quantize(ctx, values, rows);
  Tensor own(ctx.device(), values.dtype(), {count, shape[1]});
  ops::int8_row_scales(ctx, values, rows.scales);
  ops::take_columns(ctx, values, members.front()->part.offset[1], own.view());
  ops::quantize_scaled(ctx, own.view(), rows);
  synchronize(ctx);  // before `own` goes
}

void ParamStore::take_quantized(Arena& arena, DType compute, bool dequantizes) {
  std::map<int, Dim> sizes;  // by unit, elements
  for (QuantizedWeight& weight : quantized_weights_) {
    const bool takes_codes = weight.spec.activations != ops::ActivationFormat::none;
    if (weight.frozen || takes_codes) {
      weight.matrix = take_matrix(arena, weight.spec, weight.shape, label_of(weight));
    } else if (weight.row_ranks != nullptr) {
      weight.matrix.scales =
          arena.take(DType::f32, {weight.shape[0]}, label_of(weight) + ".scales");
    }
    sizes[weight.unit] += round_up(weight.shape.numel(), kAlignment);
  }
  if (!dequantizes || sizes.empty()) return;
  Dim largest = 0;
  for (const auto& [unit, size] : sizes) largest = std::max(largest, size);
  std::vector<View> buffers;
  const std::size_t count = std::min<std::size_t>(kBuffers, sizes.size());
  for (std::size_t i = 0; i < count; ++i) {
    buffers.push_back(arena.take(compute, {largest}, "dequantized matrices"));
  }
  std::map<int, std::size_t> buffer_of;
  for (const auto& [unit, size] : sizes) buffer_of[unit] = buffer_of.size() % kBuffers;
  std::map<int, Dim> next;
  for (QuantizedWeight& weight : quantized_weights_) {
    Dim& begin = next[weight.unit];
    weight.dequantized =
        buffers[buffer_of[weight.unit]].slice(begin, weight.shape.numel()).reshaped(weight.shape);
    begin += round_up(weight.shape.numel(), kAlignment);
  }
}

bool ParamStore::dequantizes(int unit) const {
  return std::ranges::any_of(quantized_weights_, [&](const QuantizedWeight& weight) {
    return weight.unit == unit && weight.dequantized;
  });
}

void ParamStore::dequantize(Context& ctx, int unit) const {
  for (const QuantizedWeight& weight : quantized_weights_) {
    if (weight.unit == unit && weight.dequantized) weight.dequantize(ctx);
  }
}

void ParamStore::set_rounding(bool rounds) {
  for (QuantizedWeight& weight : quantized_weights_) weight.rounds = rounds;
}

}  // namespace hyperslab::param
