// SPDX-License-Identifier: Apache-2.0
// What `checkpoint diff` says of two checkpoints of any layouts.
#include "hyperslab/io/checkpoint_diff.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fixtures.hpp"

namespace hyperslab {
namespace {

using test::Globals;

class CheckpointDiff : public testing::Test {
 protected:
  /// The differences of two sets of tensors, each cut at random over some ranks.
  std::vector<io::TensorDifference> compare(const Globals& a, const Globals& b) {
    std::mt19937 rng(3);
    io::CheckpointMeta meta;
    meta.step = 4;
    const auto save = [&](const char* name, const Globals& globals, int ranks) {
      const std::string path = folder_.path() + "/" + name;
      for (const std::string& error :
           test::save_all(path, meta, test::scatter(globals, ranks, 3, rng))) {
        EXPECT_EQ(error, "");
      }
      return path;
    };
    return io::compare(io::CheckpointReader(save("a", a, 2)),
                       io::CheckpointReader(save("b", b, 3)));
  }
  Globals start_ = test::make_globals({{"model/one", {7, 5}}, {"model/two", {4}}}, 1);

 private:
  test::TempFolder folder_;
};

TEST_F(CheckpointDiff, FindsNothingInEqualTensorsOfOtherLayouts) {
  EXPECT_TRUE(compare(start_, start_).empty());
}

TEST_F(CheckpointDiff, SaysHowMuchAndWhere) {
  Globals other = start_;
  std::vector<float>& values = other.at("model/one").values;
  values[2 * 5 + 3] += 0.5F;
  values[6 * 5 + 1] -= 2;

  const auto found = compare(start_, other);

  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].tensor, "model/one");
  EXPECT_EQ(found[0].unequal, 2);
  EXPECT_EQ(found[0].elements, 35);
  EXPECT_NEAR(found[0].largest, 2, 1e-5);
  EXPECT_EQ(found[0].where, (Shape{6, 1}));
  double squares = 0;
  for (const float value : start_.at("model/one").values) squares += double{value} * value;
  EXPECT_NEAR(found[0].relative_norm, std::sqrt(4.25 / squares), 1e-5 * found[0].relative_norm);
}

TEST_F(CheckpointDiff, CountsValuesThatAreNotFinite) {
  Globals first = start_;
  first.at("model/two").values[1] = std::nanf("");
  Globals second = first;
  EXPECT_TRUE(compare(first, second).empty()) << "the same everywhere";
  second.at("model/two").values[2] = std::numeric_limits<float>::infinity();

  const auto found = compare(first, second);

  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].unequal, 1);
  EXPECT_EQ(found[0].not_finite, 2);
  EXPECT_TRUE(std::isinf(found[0].largest));
  EXPECT_EQ(found[0].where, Shape{2});
}

TEST_F(CheckpointDiff, NamesTensorsThatAreMissingOrOfAnotherShape) {
  Globals other = test::make_globals({{"model/one", {5, 7}}, {"model/three", {4}}}, 1);

  const auto found = compare(start_, other);

  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].problem, "shape (7, 5) and (5, 7)");
  EXPECT_EQ(found[1].tensor + ": " + found[1].problem, "model/three: only in the second");
  EXPECT_EQ(found[2].tensor + ": " + found[2].problem, "model/two: only in the first");
}

}  // namespace
}  // namespace hyperslab
