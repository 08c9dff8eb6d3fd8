// SPDX-License-Identifier: Apache-2.0
#include "json_fields.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "hyperslab/core/printable.hpp"

namespace hyperslab::serve {
namespace {

/// The value as a message shows it: valid UTF-8 of a length that fits into a line.
std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMost = 40;
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return "an object";
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

[[noreturn]] void refuse(const std::string& name, const std::string& expected,
                         const nlohmann::json& found) {
  throw RequestError(400, fmt::format("{}: expected {}, found {}", name, expected, shown(found)),
                     name);
}

}  // namespace

const nlohmann::json* JsonFields::take(const std::string& name) {
  taken_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& JsonFields::need(const std::string& name) {
  const nlohmann::json* found = take(name);
  if (found == nullptr) throw RequestError(400, fmt::format("{} is missing", name), name);
  return *found;
}

std::optional<std::int64_t> JsonFields::integer(const std::string& name,
                                                Range<std::int64_t> range) {
  const nlohmann::json* found = take(name);
  if (found == nullptr) return {};
  const auto refuse_range = [&] {
    refuse(name, fmt::format("a whole number of {} to {}", range.least, range.most), *found);
  };
  constexpr std::uint64_t kMost = INT64_MAX;
  if (!found->is_number_integer()) refuse_range();
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > kMost) refuse_range();
  const auto value = found->get<std::int64_t>();
  if (value < range.least || value > range.most) refuse_range();
  return value;
}

std::optional<double> JsonFields::number(const std::string& name, Range<double> range) {
  const nlohmann::json* found = take(name);
  if (found == nullptr) return {};
  const double value = found->is_number() ? found->get<double>() : range.least - 1;
  if (!(value >= range.least && value <= range.most)) {
    refuse(name, fmt::format("a number of {} to {}", range.least, range.most), *found);
  }
  return value;
}

std::optional<std::string> JsonFields::text(const std::string& name) {
  const nlohmann::json* found = take(name);
  if (found == nullptr) return {};
  if (!found->is_string()) refuse(name, "a text", *found);
  return found->get<std::string>();
}

bool JsonFields::flag(const std::string& name, bool otherwise) {
  const nlohmann::json* found = take(name);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) refuse(name, "true or false", *found);
  return found->get<bool>();
}

void JsonFields::refuse_unless(const std::string& name, const nlohmann::json& neutral) {
  const nlohmann::json* found = take(name);
  if (found == nullptr || *found == neutral) return;
  throw RequestError(400, fmt::format("{} is not supported here; leave it out", name), name);
}

void JsonFields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (taken_.contains(name)) continue;
    const std::string unknown = printable(std::string_view(name).substr(0, 64));
    throw RequestError(400, fmt::format("there is no field '{}' here; leave it out", unknown),
                       unknown);
  }
}

void take_model(const ServedModel& model, JsonFields& fields) {
  const std::string name = fields.text("model").value_or(model.name);
  if (name == model.name) return;
  throw RequestError(404,
                     fmt::format("model: this server has '{}', not '{}'", model.name,
                                 printable(std::string_view(name).substr(0, 64))),
                     "model");
}

TextRules take_text_rules(const ServedModel& model, JsonFields& fields) {
  TextRules rules;
  rules.add_special = fields.flag("add_special_tokens", true);
  const bool can_parse = model.parsing != nullptr;
  rules.parse_special = fields.flag("parse_special", can_parse);
  if (rules.parse_special && !can_parse) {
    throw RequestError(400,
                       "parse_special: a special token of this model's vocabulary is single_word, "
                       "which is not looked for in text; leave it out",
                       "parse_special");
  }
  return rules;
}

}  // namespace hyperslab::serve
