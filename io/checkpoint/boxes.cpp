// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/boxes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace hyperslab::io {
namespace {

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

}  // namespace

std::optional<Box> intersection(const Box& a, const Box& b) {
  std::array<Dim, kMaxRank> offset{};
  std::array<Dim, kMaxRank> count{};
  const int rank = a.offset.rank();
  for (int d = 0; d < rank; ++d) {
    const Dim begin = std::max(a.offset[d], b.offset[d]);
    const Dim end = std::min(a.offset[d] + a.count[d], b.offset[d] + b.count[d]);
    if (begin >= end) return std::nullopt;
    offset[at(d)] = begin;
    count[at(d)] = end - begin;
  }
  return Box{Shape(std::span<const Dim>(offset.data(), at(rank))),
             Shape(std::span<const Dim>(count.data(), at(rank)))};
}

std::string problem_of(const Box& box, const Shape& global_shape) {
  bool inside = box.offset.rank() == global_shape.rank() && box.count.rank() == global_shape.rank();
  for (int d = 0; inside && d < global_shape.rank(); ++d) {
    inside = box.offset[d] >= 0 && box.count[d] >= 0 && box.offset[d] <= global_shape[d] &&
             box.count[d] <= global_shape[d] - box.offset[d];
  }
  if (inside) return "";
  return fmt::format("offset {} and count {} are not within the shape {}", box.offset.str(),
                     box.count.str(), global_shape.str());
}

std::string coverage_problem(std::span<const Box> boxes, const Shape& global_shape) {
  Dim volume = 0;
  std::vector<Box> sorted;
  for (const Box& box : boxes) {
    volume += box.count.numel();
    if (box.count.numel() > 0) sorted.push_back(box);
  }
  const bool scalar = global_shape.rank() == 0;
  if (!scalar) {
    std::ranges::sort(sorted, {}, [](const Box& box) { return box.offset[0]; });
  }
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t k = i + 1; k < sorted.size(); ++k) {
      if (!scalar && sorted[k].offset[0] >= sorted[i].offset[0] + sorted[i].count[0]) break;
      if (const auto common = intersection(sorted[i], sorted[k])) {
        return fmt::format("{} elements from offset {} are stored more than once",
                           common->count.numel(), common->offset.str());
      }
    }
  }
  if (volume == global_shape.numel()) return "";
  return fmt::format("{} of {} elements are stored", volume, global_shape.numel());
}

Runs::Runs(const Box& from, const Box& to, const Box& common) {
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
    source_strides_[at(d)] = source_stride;
    target_strides_[at(d)] = target_stride;
    source_stride *= from.count[d];
    target_stride *= to.count[d];
    if (d >= outer_) continue;
    counts_[at(d)] = common.count[d];
    size_ *= common.count[d];
  }
}

Runs::Run Runs::operator[](std::int64_t index) const {
  Run run = base_;
  for (int d = outer_ - 1; d >= 0; --d) {
    const Dim here = index % counts_[at(d)];
    index /= counts_[at(d)];
    run.source += here * source_strides_[at(d)];
    run.target += here * target_strides_[at(d)];
  }
  return run;
}

std::int64_t Runs::first_behind(std::int64_t source) const {
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

}  // namespace hyperslab::io
