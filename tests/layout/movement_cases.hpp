// SPDX-License-Identifier: Apache-2.0
// Cases of movements, and what their communicators may count.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "drawn.hpp"
#include "hyperslab/layout/movement.hpp"

namespace hyperslab::test {

struct MovementCase {
  Position at;
  std::vector<Shape> shapes;
  Layout from;
  Layout to;

  [[nodiscard]] bool is_possible() const {
    for (const Axis axis : axes_of(at)) {
      if (to[axis].is_partial() && !from[axis].is_partial()) return false;
    }
    return problem_of(at, shapes, from).empty() && problem_of(at, shapes, to).empty();
  }
  [[nodiscard]] std::string describe() const {
    return describe_case(at, shapes) + "\n  from " + layout::describe(from) + "\n  to " +
           layout::describe(to);
  }
};

/// A small integer: the term of a rank of an element's sum, or its value on rank 0. Sums over 8
/// ranks are below 128.
inline double term_of(Dim number, int rank) {
  if (number == kPadding) return 0;
  return static_cast<double>(number * 37 % 23 - 11 + (number + 3) * (rank + 1) % 9 - 4);
}

/// A group for each set of the axes that have several ranks.
inline std::vector<AxisSet> groups_of(const Position& at) {
  std::vector<AxisSet> groups = {{}};
  for (const Axis axis : axes_of(at)) {
    for (std::size_t i = groups.size(); i-- > 0;) groups.push_back(groups[i] | axis);
  }
  groups.erase(groups.begin());
  return groups;
}

/// Calls test(a position of the mesh, draw); alike on all ranks.
template <class Test>
void for_drawn_meshes(int ranks, Test test) {
  Draw draw(static_cast<unsigned>(ranks));
  for (int i = 0; i < 6; ++i) {
    const Position first(draw_sizes(draw, ranks), 0);
    test(first, draw);
  }
}

/// Calls test(MovementCase) with all pairs of layouts over one or two axes, with drawn ones over
/// more; shapes, dtypes and homes are drawn.
template <class Test>
void for_drawn_pairs(const Position& at, Draw& draw, Test test) {
  const int layouts = layouts_of(at);
  const bool all = layouts <= 36;
  for (int i = 0; i < (all ? 36 * 36 : 600); ++i) {
    const int from = all ? i / layouts % layouts : draw_below(draw, layouts);
    const int to = all ? i % layouts : draw_below(draw, layouts);
    MovementCase c = {at, draw_shapes(draw, at.size(kWorld)), layout_of(at, from),
                      layout_of(at, to)};
    for (Layout* layout : {&c.from, &c.to}) {
      layout->format.dtype = draw_below(draw, 2) == 0 ? DType::f32 : DType::bf16;
      layout->home = draw_below(draw, 4) == 0 ? Home::host : Home::device;
    }
    test(c);
  }
}

/// The traffic of a mesh at a moment.
class Counted {
 public:
  explicit Counted(const mesh::Mesh& mesh) : mesh_(mesh), bytes_(count()) {}
  /// EXPECTs what the steps of a movement say by now.
  void expect_added(const layout::Movement& movement) const {
    std::map<comm::Communicator*, std::int64_t> expected = bytes_;
    std::int64_t sum = 0;
    for (const layout::Step& step : movement.steps()) {
      if (!step.communicates()) continue;
      expected[&mesh_.group(step.axes)] += static_cast<std::int64_t>(step.bytes);
      sum += static_cast<std::int64_t>(step.bytes);
    }
    EXPECT_EQ(count(), expected);
    EXPECT_EQ(static_cast<std::int64_t>(movement.bytes()), sum);
  }

 private:
  [[nodiscard]] std::map<comm::Communicator*, std::int64_t> count() const {
    std::map<comm::Communicator*, std::int64_t> bytes;
    for (comm::Communicator* group : mesh_.groups()) {
      for (const std::int64_t kind : group->traffic().bytes) bytes[group] += kind;
    }
    return bytes;
  }
  const mesh::Mesh& mesh_;
  std::map<comm::Communicator*, std::int64_t> bytes_;
};

/// EXPECTs that the messages of a movement without sums carry each element that a rank lacks to it,
/// once, in the narrower of the dtypes.
inline void expect_messages_are_few(const MovementCase& c, const layout::Movement& movement) {
  std::size_t bytes = 0;
  bool only_messages = true;
  for (const layout::Step& step : movement.steps()) {
    const bool messages =
        step.kind == layout::Step::Kind::exchange || step.kind == layout::Step::Kind::all_to_all;
    only_messages = only_messages && (messages || !step.communicates());
    if (messages) bytes += step.bytes;
  }
  if (!only_messages || bytes == 0) return;
  AxisSet cut;  // along these, other ranks have other elements; along others the sender is no other
  for (const Axis axis : axes_of(c.at)) {
    if (c.from[axis].cuts() || c.from[axis].is_owner()) cut = cut | axis;
  }
  const auto lacks = [&](const Position& sender, const Position& receiver) {
    std::vector<Dim> has = buffer_of(sender, c.shapes, c.from);
    std::vector<Dim> needs = buffer_of(receiver, c.shapes, c.to);
    std::erase(has, kPadding);
    std::erase(needs, kPadding);
    std::ranges::sort(has);
    std::ranges::sort(needs);
    std::vector<Dim> both;
    std::ranges::set_intersection(has, needs, std::back_inserter(both));
    return both.size();
  };
  std::size_t elements = 0;
  for (int rank = 0; rank < c.at.size(cut); ++rank) {
    if (rank == c.at.at(cut)) continue;
    const Position other = c.at.moved(cut, rank);
    elements += lacks(c.at, other) + lacks(other, c.at);
  }
  const std::size_t size = std::min(size_of(c.from.format.dtype), size_of(c.to.format.dtype));
  EXPECT_EQ(bytes, elements * size);
}

}  // namespace hyperslab::test
