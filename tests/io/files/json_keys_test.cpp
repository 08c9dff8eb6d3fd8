// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/json_keys.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace hyperslab::io {
namespace {

TEST(JsonKeys, TheFirstThatStandsTwiceInOneObjectIsFound) {
  EXPECT_EQ(repeated_key(R"({"a":1,"b":{"c":2,"d":[{"e":3,"e":4}]},"a":5})"), "e");
  EXPECT_EQ(repeated_key(R"([{"a":1},{"b":2,"\u0062":3}])"), "b");
}

TEST(JsonKeys, EqualKeysOfDifferentObjectsAreNone) {
  EXPECT_FALSE(repeated_key(R"({"a":{"a":{"a":1}},"b":[{"a":2},{"a":3}]})"));
  EXPECT_FALSE(repeated_key(R"(["a","a"])"));
}

TEST(JsonKeys, NothingIsFoundBehindAnErrorOfSyntax) {
  EXPECT_FALSE(repeated_key(""));
  EXPECT_FALSE(repeated_key(R"({"a":1,,"a":2})"));
  EXPECT_FALSE(repeated_key("{\"\xFF\":1}"));
}

TEST(JsonKeys, ManyObjectsTakeNoQuadraticTime) {
  std::string json = "{";
  for (int i = 0; i < 200'000; ++i) json += fmt::format("\"x{}\":{{}},", i);

  EXPECT_EQ(repeated_key(json + R"("x0":1})"), "x0");
}

}  // namespace
}  // namespace hyperslab::io
