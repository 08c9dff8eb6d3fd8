// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/hyperslab.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

std::size_t index(int dim) { return static_cast<std::size_t>(dim); }

/// A shape of the rank of `like` whose size in dimension d is size(d).
template <class Size>
Shape shape_of(const Shape& like, Size size) {
  std::array<Dim, kMaxRank> dims{};
  for (int d = 0; d < like.rank(); ++d) dims[index(d)] = size(d);
  return Shape(std::span<const Dim>(dims.data(), index(like.rank())));
}

}  // namespace

Hyperslab Hyperslab::whole(const Shape& shape) {
  return {shape_of(shape, [](int) { return Dim{0}; }), shape};
}

Hyperslab Hyperslab::narrow(int dim, Dim first, Dim size) const {
  return {shape_of(offset, [&](int d) { return offset[d] + (d == dim ? first : 0); }),
          shape_of(count, [&](int d) { return d == dim ? size : count[d]; })};
}

Hyperslab Hyperslab::shift(const Shape& origin) const {
  return {shape_of(offset, [&](int d) { return offset[d] + origin[d]; }), count};
}

Hyperslab split(const Hyperslab& slab, int dim, Dim part, Dim parts) {
  require(slab.count[dim] % parts == 0, "a dimension does not split into equal parts");
  const Dim size = slab.count[dim] / parts;
  return slab.narrow(dim, part * size, size);
}

std::optional<Hyperslab> intersect(const Hyperslab& a, const Hyperslab& b) {
  const auto begin = [&](int d) { return std::max(a.offset[d], b.offset[d]); };
  const auto end = [&](int d) {
    return std::min(a.offset[d] + a.count[d], b.offset[d] + b.count[d]);
  };
  for (int d = 0; d < a.offset.rank(); ++d) {
    if (begin(d) >= end(d)) return std::nullopt;
  }
  return Hyperslab{shape_of(a.offset, begin),
                   shape_of(a.offset, [&](int d) { return end(d) - begin(d); })};
}

Dim first_element(const Hyperslab& slab, const Shape& shape) {
  Dim first = 0;
  for (int d = 0; d < shape.rank(); ++d) first = first * shape[d] + slab.offset[d];
  return first;
}

std::vector<Hyperslab> hyperslabs_of_range(const Shape& shape, Dim begin, Dim end) {
  std::vector<Hyperslab> out;
  if (begin >= end) return out;
  if (shape.rank() == 1) return {{{begin}, {end - begin}}};
  require(shape.rank() == 2, "ranges are taken from tensors of one or two dimensions");
  const Dim width = shape[1];
  const auto add = [&](Dim row, Dim column, Dim rows, Dim columns) {
    if (rows > 0 && columns > 0) out.push_back({{row, column}, {rows, columns}});
  };
  const Dim first_row = begin / width;
  const Dim last_row = end / width;  // the row in which the range ends
  if (first_row == last_row) {
    add(first_row, begin % width, 1, end - begin);
    return out;
  }
  const Dim first_whole = begin % width == 0 ? first_row : first_row + 1;
  if (first_whole > first_row) add(first_row, begin % width, 1, width - begin % width);
  add(first_whole, 0, last_row - first_whole, width);
  add(last_row, 0, 1, end % width);
  return out;
}

std::string problem_of(const Hyperslab& slab, const Shape& shape) {
  bool inside = slab.offset.rank() == shape.rank() && slab.count.rank() == shape.rank();
  for (int d = 0; inside && d < shape.rank(); ++d) {
    inside = slab.offset[d] >= 0 && slab.count[d] >= 0 && slab.offset[d] <= shape[d] &&
             slab.count[d] <= shape[d] - slab.offset[d];
  }
  if (inside) return "";
  return fmt::format("offset {} and count {} are not within the shape {}", slab.offset.str(),
                     slab.count.str(), shape.str());
}

std::string coverage_problem(std::span<const Hyperslab> slabs, const Shape& shape) {
  std::vector<Hyperslab> sorted;
  for (const Hyperslab& slab : slabs) {
    if (slab.numel() > 0) sorted.push_back(slab);
  }
  const bool scalar = shape.rank() == 0;
  if (!scalar) {
    std::ranges::sort(sorted, {}, [](const Hyperslab& slab) { return slab.offset[0]; });
  }
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t k = i + 1; k < sorted.size(); ++k) {
      if (!scalar && sorted[k].offset[0] >= sorted[i].offset[0] + sorted[i].count[0]) break;
      if (const auto common = intersect(sorted[i], sorted[k])) {
        return fmt::format("{} elements from offset {} are stored more than once", common->numel(),
                           common->offset.str());
      }
    }
  }
  Dim volume = 0;  // elements of slabs without overlap: no more than the tensor has
  for (const Hyperslab& slab : sorted) volume += slab.numel();
  if (volume == shape.numel()) return "";
  return fmt::format("{} of {} elements are stored", volume, shape.numel());
}

HyperslabRuns::HyperslabRuns(const Hyperslab& from, const Hyperslab& to, const Hyperslab& common) {
  int inner = common.count.rank();  // runs span the dimensions from here on
  while (inner > 0) {
    --inner;
    length_ *= common.count[inner];
    if (common.count[inner] != from.count[inner] || common.count[inner] != to.count[inner]) break;
  }
  outer_ = inner;
  Dim source_stride = 1;
  Dim target_stride = 1;
  for (int d = common.count.rank() - 1; d >= 0; --d) {
    base_.source += (common.offset[d] - from.offset[d]) * source_stride;
    base_.target += (common.offset[d] - to.offset[d]) * target_stride;
    source_strides_[index(d)] = source_stride;
    target_strides_[index(d)] = target_stride;
    source_stride *= from.count[d];
    target_stride *= to.count[d];
    if (d >= outer_) continue;
    counts_[index(d)] = common.count[d];
    size_ *= common.count[d];
  }
}

HyperslabRuns::Run HyperslabRuns::operator[](std::int64_t number) const {
  Run run = base_;
  for (int d = outer_ - 1; d >= 0; --d) {
    const Dim here = number % counts_[index(d)];
    number /= counts_[index(d)];
    run.source += here * source_strides_[index(d)];
    run.target += here * target_strides_[index(d)];
  }
  return run;
}

std::int64_t HyperslabRuns::first_after(std::int64_t source) const {
  std::int64_t low = 0;
  std::int64_t high = size_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if ((*this)[middle].source + length_ > source) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace hyperslab
