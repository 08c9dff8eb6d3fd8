// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/hyperslab.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

TEST(Hyperslabs, SplitIntoEqualPartsThatMeetNowhere) {
  const Hyperslab whole = Hyperslab::whole({6, 4});
  EXPECT_EQ(whole, (Hyperslab{{0, 0}, {6, 4}}));
  EXPECT_EQ(split(whole, 0, 1, 2), (Hyperslab{{3, 0}, {3, 4}}));
  EXPECT_EQ(split(whole, 1, 3, 4), (Hyperslab{{0, 3}, {6, 1}}));
  EXPECT_EQ(split(split(whole, 0, 1, 2), 1, 1, 2), (Hyperslab{{3, 2}, {3, 2}}));
  EXPECT_EQ(intersect(split(whole, 0, 0, 2), split(whole, 0, 1, 2)), std::nullopt);
  EXPECT_EQ(intersect(split(whole, 0, 1, 2), split(whole, 1, 1, 2)), (Hyperslab{{3, 2}, {3, 2}}));
  EXPECT_THROW((void)split(whole, 0, 0, 4), Error);
}

/// What a rank holds of its part of a tensor, as a part of the tensor.
TEST(Hyperslabs, ShiftMovesAPartOfAPartIntoTheTensor) {
  const Hyperslab mine = split(Hyperslab::whole({6, 4}), 0, 1, 2);
  const Hyperslab row = Hyperslab::whole(mine.count).narrow(0, 2, 1);
  EXPECT_EQ(row.shift(mine.offset), (Hyperslab{{5, 0}, {1, 4}}));
  EXPECT_EQ(first_element(row.shift(mine.offset), {6, 4}), 20);
  EXPECT_EQ(first_element({{1, 2, 3}, {1, 1, 1}}, {4, 5, 6}), 30 + 2 * 6 + 3);
}

TEST(Hyperslabs, CoverageFindsGapsAndOverlaps) {
  const Shape shape{4, 6};
  const std::vector<Hyperslab> good{{{0, 0}, {4, 2}}, {{0, 2}, {1, 4}}, {{1, 2}, {3, 4}}};
  EXPECT_EQ(coverage_problem(good, shape), "");
  const std::vector<Hyperslab> gap{good[0], good[2]};
  EXPECT_EQ(coverage_problem(gap, shape), "20 of 24 elements are stored");
  // A gap and an overlap of equal size: the volumes alone would not show it.
  const std::vector<Hyperslab> both{good[0], {{0, 1}, {1, 4}}, good[2]};
  EXPECT_EQ(coverage_problem(both, shape),
            "1 elements from offset (0, 1) are stored more than once");
  EXPECT_EQ(coverage_problem({}, Shape{0, 3}), "");
}

TEST(Hyperslabs, PartsMustBeInsideAlsoIfSumsOverflow) {
  EXPECT_EQ(problem_of({{1, 2}, {3, 4}}, Shape{4, 6}), "");
  EXPECT_NE(problem_of({{1, 2}, {4, 4}}, Shape{4, 6}), "");
  EXPECT_NE(problem_of({{1}, {3}}, Shape{4, 6}), "");
  EXPECT_NE(problem_of({{-1, 0}, {1, 1}}, Shape{4, 6}), "");
  EXPECT_NE(problem_of({{1, 0}, {std::numeric_limits<Dim>::max(), 1}}, Shape{4, 6}), "");
}

TEST(Hyperslabs, RunsAreAsLongAsBothArraysAllow) {
  const Hyperslab from{{0, 0, 0}, {4, 6, 8}};
  const HyperslabRuns all(from, from, from);
  EXPECT_EQ(all.size(), 1);
  EXPECT_EQ(all.length(), 4 * 6 * 8);

  const Hyperslab rows{{1, 2, 0}, {2, 3, 8}};
  const HyperslabRuns some(from, rows, rows);
  EXPECT_EQ(some.size(), 2);
  EXPECT_EQ(some.length(), 3 * 8);
  EXPECT_EQ(some[1].source, 2 * 48 + 2 * 8);
  EXPECT_EQ(some[1].target, 3 * 8);
  EXPECT_EQ(some.first_after(48 + 2 * 8 + 24), 1);
  EXPECT_EQ(some.first_after(48 + 2 * 8 + 23), 0);
  EXPECT_EQ(some.first_after(1000), 2);
}

/// Every range of small matrices: the hyperslabs are at most three, disjoint and give the range.
TEST(HyperslabsOfRange, CoverExactlyTheRange) {
  for (const Shape& shape : {Shape{7}, Shape{1, 5}, Shape{4, 3}, Shape{5, 1}}) {
    for (Dim begin = 0; begin <= shape.numel(); ++begin) {
      for (Dim end = begin; end <= shape.numel(); ++end) {
        std::vector<int> hits(static_cast<std::size_t>(shape.numel()), 0);
        const std::vector<Hyperslab> slabs = hyperslabs_of_range(shape, begin, end);
        EXPECT_LE(slabs.size(), 3U);
        for (const Hyperslab& slab : slabs) {
          const Dim width = shape.back();
          const bool flat = shape.rank() == 1;
          const Dim rows = flat ? 1 : slab.count[0];
          for (Dim row = 0; row < rows; ++row) {
            for (Dim i = 0; i < slab.count.back(); ++i) {
              const Dim base = flat ? 0 : (slab.offset[0] + row) * width;
              ++hits[static_cast<std::size_t>(base + slab.offset.back() + i)];
            }
          }
        }
        for (Dim i = 0; i < shape.numel(); ++i) {
          ASSERT_EQ(hits[static_cast<std::size_t>(i)], i >= begin && i < end ? 1 : 0)
              << shape.str() << " [" << begin << ", " << end << ") at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab
