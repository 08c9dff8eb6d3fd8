// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "hyperslab/serve/completion_request.hpp"

namespace hyperslab::serve {

/// The fields of a request's object, each taken once by its name; a field that is null counts as
/// absent. All throw RequestError(400) with the field's name.
class JsonFields {
 public:
  /// `object` must outlive this.
  explicit JsonFields(const nlohmann::json& object) : object_(object) {}

  /// Null if it is absent.
  [[nodiscard]] const nlohmann::json* take(const std::string& name);
  [[nodiscard]] const nlohmann::json& need(const std::string& name);
  template <class T>
  struct Range {
    T least;
    T most;
  };
  [[nodiscard]] std::optional<std::int64_t> integer(const std::string& name,
                                                    Range<std::int64_t> range);
  [[nodiscard]] std::optional<double> number(const std::string& name, Range<double> range);
  [[nodiscard]] std::optional<std::string> text(const std::string& name);
  [[nodiscard]] bool flag(const std::string& name, bool otherwise);
  /// Refuses a field that is there with another value than `neutral`, which changes nothing.
  void refuse_unless(const std::string& name, const nlohmann::json& neutral);
  /// Refuses fields that no one took.
  void finish() const;

 private:
  const nlohmann::json& object_;
  std::set<std::string> taken_;
};

/// Takes the field model, which may be absent. Throws RequestError(404) if it names another model.
void take_model(const ServedModel& model, JsonFields& fields);

/// With vLLM's name of the one rule, add_special_tokens, and llama.cpp's of the other,
/// parse_special, which is refused where the model's vocabulary cannot parse special tokens.
[[nodiscard]] TextRules take_text_rules(const ServedModel& model, JsonFields& fields);

}  // namespace hyperslab::serve
