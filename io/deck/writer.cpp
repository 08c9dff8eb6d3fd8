// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "hyperslab/deck/deck.hpp"
#include "schema.hpp"

namespace hyperslab::deck {
namespace {

/// Plain if every YAML reader takes it for the same text, else in double quotes.
std::string yaml_text(const std::string& text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr std::array<std::string_view, 8> kSpecial = {"null", "true", "false", "yes",
                                                        "no",   "on",   "off",   "nan"};
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto odd = text.find_first_not_of(std::string(kLetters) + "0123456789_./-");
  const bool plain = text.size() > 1 && odd == std::string::npos &&
                     kLetters.find(text.front()) != std::string_view::npos &&
                     std::ranges::find(kSpecial, lower) == kSpecial.end();
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

/// Visits the description and writes block style, a key per line.
class Writer {
 public:
  std::string yaml;

  void section(std::string_view name) { yaml += fmt::format("{}:\n", name); }
  template <class Enum, std::size_t N>
  void named(std::string_view key, Enum value, const std::array<Name<Enum>, N>& table) {
    put(key, std::ranges::find(table, value, &Name<Enum>::second)->first);
  }
  void text(std::string_view key, const std::string& value) { put(key, yaml_text(value)); }
  void maybe_text(std::string_view key, const std::string& value) {
    put(key, value.empty() ? "null" : yaml_text(value));
  }
  void flag(std::string_view key, bool value) { put(key, value ? "true" : "false"); }
  template <class Integer>
  void integer(std::string_view key, Integer value, const IntegerRange&) {
    put(key, fmt::format("{}", value));
  }
  void real(std::string_view key, double value, const RealRange&) {
    put(key, fmt::format("{}", value));
  }
  template <class Enum, std::size_t N>
  void named_list(std::string_view key, const std::vector<Enum>& values,
                  const std::array<Name<Enum>, N>& table) {
    std::vector<std::string_view> names;
    names.reserve(values.size());
    for (const Enum value : values) {
      names.push_back(std::ranges::find(table, value, &Name<Enum>::second)->first);
    }
    put(key, fmt::format("[{}]", fmt::join(names, ", ")));
  }
  void texts(std::string_view key, const std::vector<std::string>& values) {
    std::vector<std::string> quoted;
    std::ranges::transform(values, std::back_inserter(quoted), yaml_text);
    put(key, fmt::format("[{}]", fmt::join(quoted, ", ")));
  }
  void integers(std::string_view key, const std::vector<std::int64_t>& values,
                const IntegerRange&) {
    put(key, fmt::format("[{}]", fmt::join(values, ", ")));
  }
  template <std::size_t N>
  void reals(std::string_view key, const std::array<double, N>& values, const RealRange&) {
    put(key, fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void reals(std::string_view key, const std::vector<double>& values, const RealRange&) {
    put(key, fmt::format("[{}]", fmt::join(values, ", ")));
  }
  void keep(std::string_view key, std::int64_t value) {
    put(key, value == 0 ? "all" : fmt::format("{}", value));
  }
  void resume(std::string_view key, const io::ResumeChoice& value) { put(key, text_of(value)); }

 private:
  void put(std::string_view key, std::string_view value) {
    yaml += fmt::format("  {}: {}\n", key, value);
  }
};

}  // namespace

std::string to_yaml(const train::Config& config) {
  Writer writer;
  visit_keys(writer, config);
  return writer.yaml;
}

}  // namespace hyperslab::deck
