// SPDX-License-Identifier: Apache-2.0
#include "json_fields.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace hyperslab::serve {
namespace {

/// The status and field of the refusal of a request; 200 if its model is taken.
std::pair<int, std::string> answer_to(const nlohmann::json& object) {
  const ServedModel model = {.name = "m"};
  JsonFields fields(object);
  try {
    take_model(model, fields);
    fields.finish();
  } catch (const RequestError& error) {
    return {error.status(), error.field()};
  }
  return {200, ""};
}

TEST(JsonFields, TheServedModelAloneIsTaken) {
  using Answer = std::pair<int, std::string>;
  EXPECT_EQ(answer_to({{"model", "m"}}), Answer(200, ""));
  EXPECT_EQ(answer_to(nlohmann::json::object()), Answer(200, ""));
  EXPECT_EQ(answer_to({{"model", "gpt-4"}}), Answer(404, "model"));
  EXPECT_EQ(answer_to({{"model", 4}}), Answer(400, "model"));
}

TEST(JsonFields, AFieldThatIsNeededIsNamed) {
  const nlohmann::json empty = nlohmann::json::object();
  JsonFields fields(empty);
  try {
    (void)fields.need("tokens");
    ADD_FAILURE() << "it is not there";
  } catch (const RequestError& error) {
    EXPECT_STREQ(error.what(), "tokens is missing");
  }
}

}  // namespace
}  // namespace hyperslab::serve
