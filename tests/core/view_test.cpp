// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/view.hpp"

#include <gtest/gtest.h>

#include <array>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

class ViewTest : public testing::Test {
 protected:
  std::array<float, 24> memory_{};
  View view_{memory_.data(), DType::f32, Device::cpu, {2, 3, 4}};
};

TEST_F(ViewTest, SlicesTheFirstDimension) {
  const View row = view_.slice(1, 1);
  EXPECT_EQ(row.data<float>(), memory_.data() + 12);
  EXPECT_EQ(row.shape(), (Shape{1, 3, 4}));
  EXPECT_EQ(view_.slice(2, 0).numel(), 0);
  EXPECT_THROW(static_cast<void>(view_.slice(1, 2)), Error);
}

TEST_F(ViewTest, ReshapesWithoutCopying) {
  EXPECT_EQ(view_.as_matrix().shape(), (Shape{6, 4}));
  EXPECT_EQ(view_.flat().shape(), (Shape{24}));
  EXPECT_EQ(view_.rows(), 6);
  EXPECT_THROW(static_cast<void>(view_.reshaped({5, 5})), Error);
}

TEST_F(ViewTest, ChecksTypeAndRank) {
  EXPECT_THROW(static_cast<void>(view_.data<double>()), Error);
  try {
    static_cast<void>(view_.dims<2>("softmax x"));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "softmax x: has shape (2, 3, 4), expected 2 dimensions");
    EXPECT_EQ(error.code(), ExitCode::internal);
  }
  EXPECT_THROW(require_shape(view_, {2, 3}, "x"), Error);
  EXPECT_NO_THROW(require_shape(view_, {2, 3, 4}, "x"));
}

TEST_F(ViewTest, EmptyViewIsFalse) {
  EXPECT_FALSE(CView());
  EXPECT_EQ(CView().numel(), 0);
  EXPECT_TRUE(CView(view_));
}

}  // namespace
}  // namespace hyperslab
