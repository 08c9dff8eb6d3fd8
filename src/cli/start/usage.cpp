// SPDX-License-Identifier: Apache-2.0
#include "usage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdint>
#include <sstream>
#include <typeinfo>

#include "hyperslab/deck/reference.hpp"

namespace hyperslab::cli {
namespace {

namespace bpo = boost::program_options;

/// An argument that begins with dashes: "--name=value", or "--name" and the argument after it.
struct Given {
  std::string token;
  std::string name;
  std::string value;  ///< empty: none
};

Given given_option(const std::string& start, const std::vector<std::string>& arguments) {
  auto found =
      std::ranges::find_if(arguments, [&](const auto& word) { return word.starts_with(start); });
  if (found == arguments.end()) {  // a beginning of the name is enough
    found = std::ranges::find_if(arguments, [&](const auto& word) {
      return word.starts_with("--") && word.size() > 2 &&
             start.starts_with(word.substr(0, word.find('=')));
    });
  }
  Given given{found == arguments.end() ? start : *found, "", ""};
  const auto equals = given.token.find('=');
  given.name = given.token.substr(0, equals);
  given.name.erase(0, given.name.find_first_not_of('-'));
  if (equals != std::string::npos) {
    given.value = given.token.substr(equals + 1);
  } else if (found != arguments.end() && found + 1 != arguments.end() &&
             !(found + 1)->starts_with('-')) {
    given.value = *(found + 1);
  }
  return given;
}

std::vector<std::string_view> long_names(const bpo::options_description& options) {
  std::vector<std::string_view> names;
  for (const auto& option : options.options()) names.push_back(option->long_name());
  return names;
}

std::string set_form(const std::string& key, const std::string& value) {
  return fmt::format("--set {}={}", key, value.empty() ? "VALUE" : value);
}

/// The option that an unknown one may mean: one with one dash, a key of the deck, a slip.
std::string meant_option(const Given& given, const bpo::options_description& options) {
  const auto names = long_names(options);
  const auto is_option = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (is_option(given.name)) {
    return fmt::format("--{}{}{}", given.name, given.value.empty() ? "" : " ", given.value);
  }
  auto word = given.name;
  std::ranges::replace(word, '-', '_');
  const auto key = is_option("set") ? deck::meant_key(word) : "";
  const bool is_name_of_key = key == word || key.ends_with("." + word);
  if (is_name_of_key && !key.empty()) return set_form(key, given.value);
  const auto near = deck::nearest_word(given.name, names);
  if (!near.empty()) return fmt::format("--{}", near);
  return key.empty() ? "" : set_form(key, given.value);
}

std::string unknown_option(const Given& given, const bpo::options_description& options) {
  const auto meant = meant_option(given, options);
  const auto shown = given.token.substr(0, given.token.find('='));
  return fmt::format("there is no option {}{}", shown,
                     meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
}

/// "a whole number", "a number" or "another value".
std::string expected(const std::string& option, const bpo::options_description& options) {
  const auto name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  const auto* found = options.find_nothrow(name, true);
  const auto* typed = found == nullptr
                          ? nullptr
                          : dynamic_cast<const bpo::typed_value_base*>(found->semantic().get());
  if (typed == nullptr) return "another value";
  const std::type_info& type = typed->value_type();
  if (type == typeid(double)) return "a number";
  const bool whole =
      type == typeid(int) || type == typeid(std::int64_t) || type == typeid(std::uint64_t);
  return whole ? "a whole number" : "another value";
}

std::string explain_syntax(const bpo::invalid_syntax& error) {
  using Kind = bpo::invalid_syntax::kind_t;
  const std::string option = error.get_option_name();
  switch (error.kind()) {
    case Kind::missing_parameter:
    case Kind::empty_adjacent_parameter: return option + " needs a value";
    case Kind::extra_parameter: return option + " takes no value";
    default: return "cannot read the argument " + option;
  }
}

std::string explain_value(const bpo::validation_error& error,
                          const bpo::options_description& options,
                          const std::vector<std::string>& arguments) {
  using Kind = bpo::validation_error::kind_t;
  const std::string option = error.get_option_name();
  if (error.kind() == Kind::at_least_one_value_required) return option + " needs a value";
  if (error.kind() == Kind::multiple_values_not_allowed) return option + " takes one value";
  return fmt::format("{} is '{}', expected {}", option, given_option(option, arguments).value,
                     expected(option, options));
}

std::string explain_named(const bpo::error_with_option_name& error,
                          const bpo::options_description& options,
                          const std::vector<std::string>& arguments) {
  const std::string option = error.get_option_name();
  if (dynamic_cast<const bpo::unknown_option*>(&error) != nullptr) {
    return unknown_option(given_option(option, arguments), options);
  }
  if (const auto* several = dynamic_cast<const bpo::ambiguous_option*>(&error)) {
    auto names = several->alternatives();
    std::ranges::sort(names);
    names.erase(std::ranges::unique(names).begin(), names.end());
    return fmt::format("{} can mean --{}; write one of them", given_option(option, arguments).token,
                       fmt::join(names, ", --"));
  }
  if (dynamic_cast<const bpo::multiple_occurrences*>(&error) != nullptr) {
    return option + " is given more than once; give it once";
  }
  if (dynamic_cast<const bpo::required_option*>(&error) != nullptr) return option + " is missing";
  if (const auto* value = dynamic_cast<const bpo::validation_error*>(&error)) {
    return explain_value(*value, options, arguments);
  }
  if (const auto* syntax = dynamic_cast<const bpo::invalid_syntax*>(&error)) {
    return explain_syntax(*syntax);
  }
  return "cannot read the option " + option;
}

}  // namespace

std::string explain(const bpo::error& error, const bpo::options_description& options,
                    const std::vector<std::string>& arguments) {
  const auto* named = dynamic_cast<const bpo::error_with_option_name*>(&error);
  return named == nullptr ? "cannot read the options" : explain_named(*named, options, arguments);
}

std::string meant_override(const std::string& word, const std::vector<std::string>& arguments) {
  const auto equals = word.find('=');
  if (equals != std::string::npos) {
    const auto left = word.substr(0, equals);
    const auto key = left.find('/') == std::string::npos ? deck::meant_key(left) : "";
    return key.empty() ? "" : set_form(key, word.substr(equals + 1));
  }
  const auto found = std::ranges::find(arguments, word);
  const bool follows_set = found - arguments.begin() >= 2 && *(found - 2) == "--set";
  if (!follows_set || word.ends_with(".yaml") || word.ends_with(".yml")) return "";
  return deck::is_key(*(found - 1)) ? set_form(*(found - 1), word) : "";
}

std::string wrapped(const std::string& text) {
  constexpr std::size_t kColumns = 80;
  std::string out;
  std::size_t begin = 0;  // the first column of the line
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ' ');) {
    const bool is_first = out.size() == begin;
    const std::size_t end = std::min(word.find('\n'), word.size());
    if (!is_first && out.size() - begin + 1 + end > kColumns) {
      out += '\n';
      begin = out.size();
    } else if (!is_first) {
      out += ' ';
    }
    out += word;
    const std::size_t newline = out.rfind('\n');
    if (newline != std::string::npos) begin = newline + 1;
  }
  return out;
}

}  // namespace hyperslab::cli
