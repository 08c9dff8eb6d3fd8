// SPDX-License-Identifier: Apache-2.0
// Matrices that layers do not multiply by as they are stored.
#include "hyperslab/param/quantized_weight.hpp"

#include <algorithm>
#include <numeric>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::param {
namespace {

constexpr Dim kRoundedBytes = Dim{16} << 20;  // bytes of values that are rounded at once

}  // namespace

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
  const ops::QuantizedMatrix rows = ops::rows_of(matrix, first, count);
  if (row_ranks == nullptr) return ops::quantize(ctx, values, rows);
  Tensor own(ctx.device(), values.dtype(), {count, shape[1]});
  ops::int8_row_scales(ctx, values, rows.scales);
  ops::take_columns(ctx, values, members.front()->part.offset[1], own.view());
  ops::quantize_scaled(ctx, own.view(), rows);
  synchronize(ctx);  // before `own` goes
}

}  // namespace hyperslab::param
