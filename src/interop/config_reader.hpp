// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "complaints.hpp"
#include "exchange_keys.hpp"

namespace hyperslab::interop {

/// A value for messages.
inline std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

/// Values of a config.json with their defaults; notes which keys were asked for.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& config, const std::string& file)
      : config_(config), file_(file) {}

  [[nodiscard]] Dim size(const char* key, Dim fallback, Dim most = 1 << 24) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      fail(key, fmt::format("a whole number from 1 to {}", most), *value);
    }
    return value->get<Dim>();
  }
  /// A finite number of at least 0.
  [[nodiscard]] double real(const char* key, double fallback) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= 0) || std::isinf(value->get<double>())) {
      fail(key, "a number of at least 0", *value);
    }
    return value->get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool fallback) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "true or false", *value);
    return value->get<bool>();
  }
  [[nodiscard]] std::string text(const char* key, const std::string& fallback) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, "a text", *value);
    return value->get<std::string>();
  }
  /// An id or a list of ids; a null has none.
  [[nodiscard]] std::vector<std::int64_t> ids(const char* key, std::int64_t fallback) {
    if (!config_.contains(key)) return {fallback};
    const nlohmann::json* value = find(key);
    if (value == nullptr) return {};
    std::vector<std::int64_t> out;
    for (const nlohmann::json& one : value->is_array() ? *value : nlohmann::json::array({*value})) {
      if (!one.is_number_integer()) fail(key, "an id, a list of ids or null", *value);
      if (one.is_number_unsigned() && one.get<std::uint64_t>() > kMostId) {
        fail(key, "an id below 2^31", *value);
      }
      out.push_back(one.get<std::int64_t>());
    }
    return out;
  }
  /// The value of a key that is there and not null.
  [[nodiscard]] const nlohmann::json* find(const char* key) {
    read_.insert(key);
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }
  /// True if the file names the key, be it with null.
  [[nodiscard]] bool has(const char* key) const { return config_.contains(key); }
  [[nodiscard]] bool has_read(const std::string& key) const { return read_.contains(key); }
  /// A size with two names, which must agree if both are given.
  [[nodiscard]] Dim size_of_two(const char* key, const char* alias, Dim fallback, Dim most,
                                Complaints& complaints) {
    const Dim first = size(key, fallback, most);
    const Dim second = size(alias, first, most);
    complaints.unless(
        find(key) == nullptr || first == second,
        fmt::format("{} is {} and {}, its other name, is {}", key, first, alias, second));
    return second;
  }
  /// Complains of every key that nothing has asked for, that is in no table and not among
  /// `ignored`; and of an ignored one that is known.
  void check_all(model::Family family, const std::vector<std::string>& ignored,
                 Complaints& complaints) const {
    complain_of_unknown(check_rest(family, complaints), ignored, complaints);
  }
  /// Complains likewise; besides the keys that were read, only those in `harmless` are known.
  void check_all(std::span<const std::string_view> harmless,
                 const std::vector<std::string>& ignored, Complaints& complaints) const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : config_.items()) {
      const bool is_known = read_.contains(key) || value.is_null() ||
                            std::ranges::find(harmless, key) != harmless.end();
      if (!is_known) unknown.push_back(key);
    }
    complain_of_unknown(unknown, ignored, complaints);
  }
  /// Checks the keys that nothing has asked for; returns those that are in no table. `where`:
  /// before their names in complaints.
  [[nodiscard]] std::vector<std::string> check_rest(model::Family family, Complaints& complaints,
                                                    const std::string& where = "") const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : config_.items()) {
      if (read_.contains(key)) continue;
      const UnreadKey kind = check_unread(family, key, value);
      if (kind == UnreadKey::unknown) unknown.push_back(key);
      const std::string only = neutral_value(family, key);
      complaints.unless(kind != UnreadKey::refused,
                        fmt::format("{}{} is {}, {}", where, key, shown(value),
                                    only.empty() ? "which is not done here"
                                                 : fmt::format("only {} is done here", only)));
    }
    return unknown;
  }

 private:
  void complain_of_unknown(const std::vector<std::string>& unknown,
                           const std::vector<std::string>& ignored, Complaints& complaints) const {
    std::vector<std::string> refused;
    std::ranges::copy_if(unknown, std::back_inserter(refused), [&](const std::string& key) {
      return std::ranges::find(ignored, key) == ignored.end();
    });
    complaints.unless(refused.empty(),
                      fmt::format("{0} {1} not known here and may decide what the model computes; "
                                  "if not, add --ignore-config-key {2}",
                                  fmt::join(refused, ", "), refused.size() == 1 ? "is" : "are",
                                  fmt::join(refused, " --ignore-config-key ")));
    for (const std::string& key : ignored) {
      const bool is_known =
          config_.contains(key) && std::ranges::find(unknown, key) == unknown.end();
      complaints.unless(!is_known, fmt::format("{} is known here and cannot be ignored", key));
    }
  }
  static constexpr std::uint64_t kMostId = (std::uint64_t{1} << 31) - 1;

  [[noreturn]] void fail(const char* key, const std::string& expected,
                         const nlohmann::json& found) const {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: {}: expected {}, found {}", file_, key, expected, shown(found)));
  }
  const nlohmann::json& config_;
  const std::string& file_;
  std::set<std::string, std::less<>> read_;
};

/// Everything that reading a config.json needs.
struct Import {
  ConfigReader config;
  const std::string& file;
  std::optional<double> dropout;  ///< used instead of the file's
  Complaints complaints;
  std::vector<std::string> warnings;
};

/// `all`: the file's keys and values. model.dropout is one probability for the embedding, the
/// residual stream and, with attention: reference, attention's probabilities.
void read_dropout(Import& in, model::ModelSpec& spec, double embedding, double residual,
                  double probabilities, const std::string& all);

}  // namespace hyperslab::interop
