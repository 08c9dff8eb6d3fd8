// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/json_depth.hpp"

#include <gtest/gtest.h>

#include <string>

namespace hyperslab::io {
namespace {

TEST(JsonDepth, CountsListsAndObjectsOutsideOfTexts) {
  const std::string most(kDeepestJson, '[');

  EXPECT_FALSE(is_too_deep(most));
  EXPECT_TRUE(is_too_deep(most + "["));
  EXPECT_TRUE(is_too_deep(most + "{"));
  EXPECT_FALSE(is_too_deep(most + R"("[[\\\"[{")"));
  EXPECT_FALSE(is_too_deep(most + "]["));
  EXPECT_FALSE(is_too_deep(""));
}

}  // namespace
}  // namespace hyperslab::io
