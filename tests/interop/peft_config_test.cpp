// SPDX-License-Identifier: Apache-2.0
#include "peft_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/refusal.hpp"

namespace hyperslab::interop {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const char* text) {
  return test::refusal(ExitCode::checkpoint, [&] {
    Complaints complaints;
    (void)read_peft_config(text, "a.json", complaints);
  });
}

TEST(PeftConfig, AValueOfAnotherTypeIsNamed) {
  EXPECT_EQ(refusal_of(R"({"peft_type": "LORA", "r": "two"})"),
            "a.json: damaged JSON: r is \"two\": type must be number, but is string");
  EXPECT_THAT(refusal_of(R"({"peft_type": "LORA", "r": 8, "rank_pattern": {"q": []}})"),
              HasSubstr("rank_pattern is {\"q\":[]}"));
}

TEST(PeftConfig, WhatIsNoJsonSaysWhere) {
  EXPECT_THAT(refusal_of("{\"r\":"), HasSubstr("damaged JSON: parse error at line 1"));
}

TEST(PeftConfig, PatternsMayBeNull) {
  Complaints complaints;
  const PeftConfig config = read_peft_config(
      R"({"peft_type": "LORA", "r": 4, "rank_pattern": null, "alpha_pattern": {"q": 2}})", "a.json",
      complaints);

  EXPECT_EQ(config.rank, 4);
  EXPECT_TRUE(config.rank_pattern.empty());
  EXPECT_EQ(config.alpha_pattern.at("q"), 2);
}

}  // namespace
}  // namespace hyperslab::interop
