// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/json_problem.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

namespace hyperslab::io {
namespace {

using nlohmann::json;

template <class Work>
std::string problem_of(Work&& work) {
  try {
    std::ignore = work();
  } catch (const json::exception& error) {
    return json_problem(error);
  }
  return "no problem";
}

TEST(JsonProblem, SaysWhatIsWrongWithoutAnIdentifier) {
  EXPECT_EQ(problem_of([] { return json(1).at("a"); }),
            "expected another type of value, found number");
  EXPECT_TRUE(
      problem_of([] { return json::parse("[1,\n 2"); }).starts_with("parse error at line 2"));
}

TEST(JsonProblem, CutsALongText) {
  const std::string text = '"' + std::string(5000, 'x');
  EXPECT_LT(problem_of([&] { return json::parse(text); }).size(), 250);
}

TEST(JsonProblem, CutsNoCharacter) {
  for (const char* before : {"", "a"}) {
    std::string text = std::string("\"") + before;
    for (int i = 0; i < 500; ++i) text += "\u00e9";
    const std::string found = problem_of([&] { return json::parse(text); });
    EXPECT_TRUE(found.ends_with("\u00e9..."));
    EXPECT_NO_THROW(std::ignore = json(found).dump()) << "is no UTF-8";
  }
}

}  // namespace
}  // namespace hyperslab::io
