// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/layout/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::layout {

using mesh::Axis;
using mesh::AxisSet;
using mesh::kAxes;
using mesh::Position;

namespace {

std::string name_of(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::replicate: return "replicate";
    case Placement::Kind::shard: return fmt::format("shard({})", placement.dim);
    case Placement::Kind::flat: return "flat";
    case Placement::Kind::partial: return "partial";
    case Placement::Kind::owner: return "owner";
  }
  return "?";
}

/// The number of ranks nearest to `ranks` that divides `size`; of two, the smaller.
Dim nearest_divisor(Dim size, Dim ranks) {
  Dim nearest = 1;
  for (Dim divisor = 1; divisor <= size; ++divisor) {
    if (size % divisor == 0 && std::abs(divisor - ranks) < std::abs(nearest - ranks)) {
      nearest = divisor;
    }
  }
  return nearest;
}

std::string problem_of_shards(const Position& at, const Shape& shape, const Layout& layout) {
  std::array<Dim, 2> left = {shape[0], shape.back()};  // sizes of this rank's part so far
  for (const Axis axis : kAxes) {
    if (!layout[axis].is_shard() || at.size(axis) == 1) continue;
    const int dim = layout[axis].dim;
    if (dim < 0 || dim >= shape.rank()) {
      return fmt::format("there is no dimension {} that the {} ranks of {} could cut", dim,
                         at.size(axis), mesh::name_of(axis));
    }
    Dim& size = left[static_cast<std::size_t>(dim)];
    if (size % at.size(axis) != 0) {
      return fmt::format(
          "the {} ranks of {} cannot cut the {} elements of dimension {} into equal parts; the "
          "nearest number of ranks that can is {}",
          at.size(axis), mesh::name_of(axis), size, dim, nearest_divisor(size, at.size(axis)));
    }
    size /= at.size(axis);
  }
  return "";
}

/// The part of a tensor that shards leave this rank.
Hyperslab part_of(const Position& at, const Shape& shape, const Layout& layout) {
  Hyperslab part = Hyperslab::whole(shape);
  for (const Axis axis : kAxes) {
    if (layout[axis].is_shard() && at.size(axis) > 1) {
      part = split(part, layout[axis].dim, at.at(axis), at.size(axis));
    }
  }
  return part;
}

/// True if this rank is the first along all axes with such placements.
template <class Test>
bool is_first(const Position& at, const Layout& layout, Test test) {
  return std::ranges::all_of(kAxes,
                             [&](Axis axis) { return !test(layout[axis]) || at.at(axis) == 0; });
}

/// The parts of the tensors that shards leave this rank, and its range of them: all of them unless
/// several ranks cut flat, none if another rank owns them.
struct Parts {
  std::vector<Hyperslab> parts;
  Dim first = 0;
  Dim size = 0;
};

Parts parts_of(const Position& at, std::span<const Shape> shapes, const Layout& layout) {
  const std::string problem = problem_of(at, shapes, layout);
  if (!problem.empty()) throw Error(ExitCode::usage, problem);
  Parts mine;
  if (!is_first(at, layout, [](const Placement& p) { return p.is_owner(); })) return mine;
  for (const Shape& shape : shapes) {
    mine.size += mine.parts.emplace_back(part_of(at, shape, layout)).numel();
  }
  const AxisSet flat = layout.axes(Placement::Kind::flat);
  if (at.size(flat) == 1) return mine;
  mine.size = flat_range(mine.size, at.size(flat));
  mine.first = at.at(flat) * mine.size;
  return mine;
}

}  // namespace

Layout Layout::with(AxisSet axes, Placement placement) const {
  Layout other = *this;
  for (const Axis axis : kAxes) {
    if (axes.contains(axis)) other.over[static_cast<std::size_t>(axis)] = placement;
  }
  return other;
}

AxisSet Layout::axes(Placement::Kind kind) const {
  AxisSet found;
  for (const Axis axis : kAxes) {
    if ((*this)[axis].kind == kind) found = found | axis;
  }
  return found;
}

std::string describe(const Layout& layout) {
  std::string text;
  std::vector<Placement> named = {replicate()};
  const auto add = [&](const Placement& placement) {
    if (std::ranges::find(named, placement) != named.end()) return;
    named.push_back(placement);
    AxisSet axes;
    for (const Axis axis : kAxes) axes = layout[axis] == placement ? axes | axis : axes;
    text += fmt::format("{} over {}, ", name_of(placement), mesh::describe(axes));
  };
  // Shards come first, because they cut first.
  for (const Placement& placement : layout.over) {
    if (placement.is_shard()) add(placement);
  }
  for (const Placement& placement : layout.over) add(placement);
  if (text.empty()) text = "replicate, ";
  return fmt::format("{}{}, {}", text, hyperslab::name_of(layout.format.dtype),
                     name_of(layout.home));
}

std::string problem_of(const Position& at, std::span<const Shape> shapes, const Layout& layout) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const int rank = shapes[i].rank();
    const std::string problem =
        rank < 1 || rank > 2 ? fmt::format("layouts are of one or two dimensions, not {}", rank)
                             : problem_of_shards(at, shapes[i], layout);
    if (!problem.empty()) return fmt::format("tensor {} {}: {}", i, shapes[i].str(), problem);
  }
  return "";
}

Dim flat_range(Dim elements, int ranks) { return round_up(elements, ranks * kFlatGranule) / ranks; }

Dim buffer_elements(const Position& at, std::span<const Shape> shapes, const Layout& layout) {
  return parts_of(at, shapes, layout).size;
}

std::vector<std::vector<Hyperslab>> held(const Position& at, std::span<const Shape> shapes,
                                         const Layout& layout) {
  const auto [parts, first, size] = parts_of(at, shapes, layout);
  std::vector<std::vector<Hyperslab>> out(shapes.size());
  Dim begin = first;  // this rank's range, seen from the tensor's first element
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Dim end = std::min(begin + size, parts[i].numel());
    for (const Hyperslab& local :
         hyperslabs_of_range(parts[i].count, std::max(begin, Dim{0}), end)) {
      out[i].push_back(local.shift(parts[i].offset));
    }
    begin -= parts[i].numel();
  }
  return out;
}

std::vector<std::vector<Hyperslab>> owned(const Position& at, std::span<const Shape> shapes,
                                          const Layout& layout) {
  std::vector<std::vector<Hyperslab>> out = held(at, shapes, layout);
  if (is_first(at, layout, [](const Placement& p) { return !p.cuts(); })) return out;
  return std::vector<std::vector<Hyperslab>>(shapes.size());
}

}  // namespace hyperslab::layout
