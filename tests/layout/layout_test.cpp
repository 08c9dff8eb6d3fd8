// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/layout/layout.hpp"

#include <gtest/gtest.h>

#include "drawn.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using layout::flat;
using layout::held;
using layout::owned;
using layout::owner;
using layout::partial;
using layout::shard;

/// The numbers of the elements of hyperslabs, counted through all tensors.
std::vector<Dim> numbers_of(const std::vector<std::vector<Hyperslab>>& slabs,
                            const std::vector<Shape>& shapes) {
  std::vector<Dim> numbers;
  Dim first = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const Hyperslab& slab : slabs[i]) {
      EXPECT_EQ(problem_of(slab, shapes[i]), "");
      EXPECT_GT(slab.numel(), 0);
      const HyperslabRuns runs(Hyperslab::whole(shapes[i]), slab, slab);
      for (std::int64_t run = 0; run < runs.size(); ++run) {
        for (Dim k = 0; k < runs.length(); ++k) numbers.push_back(first + runs[run].source + k);
      }
    }
    first += shapes[i].numel();
  }
  return numbers;
}

/// Calls test(at, shapes, layout) with positions of rank 0 of drawn meshes. The layouts may have
/// problems.
template <class Test>
void for_drawn_layouts(Test test) {
  Draw draw(1);
  for (int i = 0; i < 3000; ++i) {
    const int ranks = 1 + draw_below(draw, 8);
    const Position at(draw_sizes(draw, ranks), 0);
    const std::vector<Shape> shapes = draw_shapes(draw, ranks);
    const Layout layout = layout_of(at, draw_below(draw, layouts_of(at)));
    SCOPED_TRACE(describe_case(at, shapes) + describe(layout));
    test(at, shapes, layout);
  }
}

TEST(Layout, HoldsTheElementsThatItsDefinitionSays) {
  int checked = 0;
  for_drawn_layouts([&](const Position& first, const auto& shapes, const Layout& layout) {
    if (!problem_of(first, shapes, layout).empty()) return;
    ++checked;
    for (int rank = 0; rank < first.size(kWorld); ++rank) {
      const Position at = first.moved(kWorld, rank);
      std::vector<Dim> expected = buffer_of(at, shapes, layout);
      std::erase(expected, kPadding);
      ASSERT_EQ(numbers_of(held(at, shapes, layout), shapes), expected) << "rank " << rank;
    }
  });
  EXPECT_GT(checked, 1500);
}

TEST(Layout, HasOneRankThatAnswersForEachElement) {
  for_drawn_layouts([&](const Position& first, const auto& shapes, const Layout& layout) {
    if (!problem_of(first, shapes, layout).empty()) return;
    std::vector<std::vector<Hyperslab>> all(shapes.size());
    for (int rank = 0; rank < first.size(kWorld); ++rank) {
      const auto mine = owned(first.moved(kWorld, rank), shapes, layout);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        all[i].insert(all[i].end(), mine[i].begin(), mine[i].end());
      }
    }
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      ASSERT_EQ(coverage_problem(all[i], shapes[i]), "");
    }
  });
}

/// The example of the header.
TEST(Layout, FlatCutsTheRestOfShards) {
  const Position first({1, 2, 1, 1, 1, 2}, 0);
  const std::vector<Shape> shapes = {{6, 4}};
  const Layout layout = Layout{}.with(Axis::tensor, shard(0)).with(Axis::fold, flat());

  EXPECT_EQ(held(first.moved(Axis::tensor, 1), shapes, layout)[0],
            (std::vector<Hyperslab>{{{3, 0}, {3, 4}}}));
  EXPECT_TRUE(held(first.moved(Axis::fold, 1), shapes, layout)[0].empty());
  EXPECT_EQ(layout::flat_range(12, 2), 32);
  EXPECT_EQ(layout::flat_range(65, 2), 64);
  EXPECT_EQ(layout::flat_range(0, 2), 0);
}

TEST(Layout, ARangeIsAtMostThreeHyperslabsOfATensor) {
  const Position first({1, 4, 1, 1, 1, 1}, 1);
  const std::vector<Shape> shapes = {{3}, {25, 5}};

  const auto mine = held(first, shapes, Layout{}.with(Axis::fold, flat()));

  EXPECT_TRUE(mine[0].empty());  // elements 32 to 63 of 128
  EXPECT_EQ(mine[1],
            (std::vector<Hyperslab>{{{5, 4}, {1, 1}}, {{6, 0}, {6, 5}}, {{12, 0}, {1, 1}}}));
}

TEST(Layout, IsDescribedByItsAxes) {
  Layout layout = Layout{}.with(mesh::kShards, flat()).with(Axis::tensor, shard(0));
  layout.format.dtype = DType::bf16;

  EXPECT_EQ(describe(layout),
            "shard(0) over tensor, flat over fold and expert and context, bf16, device");
  EXPECT_EQ(describe(Layout{.home = Home::host}), "replicate, f32, host");
  EXPECT_EQ(describe(Layout{}.with(mesh::kGradients, partial()).with(Axis::pipeline, owner())),
            "partial over replica and fold and expert and context, owner over pipeline, f32, "
            "device");
  EXPECT_NE(layout, layout.with(Axis::fold, partial()));
}

TEST(Layout, RefusesWhatCannotBeCut) {
  const Position at({1, 4, 1, 1, 1, 2}, 0);
  const std::vector<Shape> shapes = {{8, 8}, {6, 4}, {8}};
  const auto problem = [&](const Layout& layout) { return problem_of(at, shapes, layout); };

  EXPECT_EQ(problem(Layout{}.with(Axis::fold, shard(0))),
            "tensor 1 (6, 4): the 4 ranks of fold cannot cut the 6 elements of dimension 0 into "
            "equal parts; the nearest number of ranks that can is 3");
  EXPECT_EQ(problem(Layout{}.with(Axis::tensor, shard(1))),
            "tensor 2 (8): there is no dimension 1 that the 2 ranks of tensor could cut");
  EXPECT_EQ(problem(Layout{}.with({Axis::fold, Axis::tensor}, shard(0))),
            "tensor 1 (6, 4): the 4 ranks of fold cannot cut the 6 elements of dimension 0 into "
            "equal parts; the nearest number of ranks that can is 3");
  EXPECT_EQ(problem(Layout{}.with(Axis::context, shard(7))), "");
  EXPECT_EQ(problem_of(at, std::vector<Shape>{{2, 2, 2}}, Layout{}),
            "tensor 0 (2, 2, 2): layouts are of one or two dimensions, not 3");
  expect_error(ExitCode::usage, {"tensor 1 (6, 4)", "ranks of fold", "is 3"},
               [&] { (void)held(at, shapes, Layout{}.with(Axis::fold, shard(0))); });
}

}  // namespace
}  // namespace hyperslab::test
