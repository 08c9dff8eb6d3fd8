// SPDX-License-Identifier: Apache-2.0
// Drawn meshes, shapes and layouts, and the elements of a buffer by the definition of a layout,
// element by element.
#pragma once

#include <array>
#include <random>
#include <string>
#include <vector>

#include "hyperslab/layout/layout.hpp"

namespace hyperslab::test {

using layout::Layout;
using layout::Placement;
using mesh::Axis;
using mesh::AxisSet;
using mesh::kAxes;
using mesh::kWorld;
using mesh::Position;

using Draw = std::mt19937;

inline int draw_below(Draw& draw, int end) {
  return static_cast<int>(draw() % static_cast<unsigned>(end));
}

/// The sizes of a mesh of so many ranks, whose prime factors fall on any axes.
inline Position::Sizes draw_sizes(Draw& draw, int ranks) {
  Position::Sizes sizes = {1, 1, 1, 1, 1, 1};
  for (int factor = 2; ranks > 1; ++factor) {
    for (; ranks % factor == 0; ranks /= factor) {
      sizes[static_cast<std::size_t>(draw_below(draw, 6))] *= factor;
    }
  }
  return sizes;
}

/// One to three tensors of one or two dimensions, most of which the ranks divide.
inline std::vector<Shape> draw_shapes(Draw& draw, int ranks) {
  std::vector<Shape> shapes;
  const auto size = [&] {
    return Dim{1 + draw_below(draw, 4)} * (draw_below(draw, 16) == 0 ? 1 : ranks);
  };
  for (int count = 1 + draw_below(draw, 3); count > 0; --count) {
    shapes.push_back(draw_below(draw, 5) == 0 ? Shape{size()} : Shape{size(), size()});
  }
  return shapes;
}

inline std::vector<Axis> axes_of(const Position& at) {
  std::vector<Axis> axes;
  for (const Axis axis : kAxes) {
    if (at.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

inline constexpr std::array kPlacements = {layout::replicate(), layout::shard(0),  layout::shard(1),
                                           layout::flat(),      layout::partial(), layout::owner()};

/// Layout `number` of the pow(6, axes of several ranks) of a mesh.
inline Layout layout_of(const Position& at, int number) {
  Layout layout;
  for (const Axis axis : axes_of(at)) {
    layout = layout.with(axis, kPlacements[static_cast<std::size_t>(number % 6)]);
    number /= 6;
  }
  return layout;
}

inline int layouts_of(const Position& at) {
  int layouts = 1;
  for (std::size_t i = 0; i < axes_of(at).size(); ++i) layouts *= 6;
  return layouts;
}

inline constexpr Dim kPadding = -1;

/// The numbers of the elements that this rank's buffer holds, counted through all tensors, and
/// kPadding. The layout has no problem.
inline std::vector<Dim> buffer_of(const Position& at, const std::vector<Shape>& shapes,
                                  const Layout& layout) {
  std::vector<Dim> left;
  Dim number = 0;
  for (const Shape& shape : shapes) {
    for (Dim i = 0; i < shape.numel(); ++i, ++number) {
      std::array<Dim, 2> size = {shape[0], shape.rank() == 2 ? shape[1] : 1};
      std::array<Dim, 2> index = {i / size[1], i % size[1]};
      bool mine = true;
      for (const Axis axis : axes_of(at)) {
        if (!layout[axis].is_shard()) continue;
        const auto dim = static_cast<std::size_t>(layout[axis].dim);
        size[dim] /= at.size(axis);
        mine = mine && index[dim] / size[dim] == at.at(axis);
        index[dim] %= size[dim];
      }
      if (mine) left.push_back(number);
    }
  }
  Dim ranges = 1;
  Dim range = 0;
  for (const Axis axis : axes_of(at)) {
    if (layout[axis].is_owner() && at.at(axis) > 0) return {};
    if (!layout[axis].is_flat()) continue;
    ranges *= at.size(axis);
    range = range * at.size(axis) + at.at(axis);
  }
  if (ranges == 1) return left;
  while (left.size() % static_cast<std::size_t>(ranges * 32) != 0) left.push_back(kPadding);
  const Dim size = static_cast<Dim>(left.size()) / ranges;
  return {left.begin() + range * size, left.begin() + (range + 1) * size};
}

inline std::string describe_case(const Position& at, const std::vector<Shape>& shapes) {
  std::string text;
  for (const Axis axis : axes_of(at)) {
    text += std::string(name_of(axis)) + " " + std::to_string(at.size(axis)) + ", ";
  }
  for (const Shape& shape : shapes) text += shape.str() + " ";
  return text;
}

}  // namespace hyperslab::test
