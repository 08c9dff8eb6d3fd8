// SPDX-License-Identifier: Apache-2.0
#include "scalar.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "utf8.hpp"

namespace hyperslab::deck {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

std::string_view without_sign(std::string_view text) {
  return text.starts_with('-') || text.starts_with('+') ? text.substr(1) : text;
}

/// from_chars takes no leading plus.
std::string_view without_plus(std::string_view text) {
  return text.starts_with('+') ? text.substr(1) : text;
}

/// A decimal number as YAML 1.2 has it: digits with at most one point, perhaps an exponent.
bool is_decimal(std::string_view text) {
  text = without_sign(text);
  const auto exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    if (!all_digits(without_sign(text.substr(exponent + 1)))) return false;
    text = text.substr(0, exponent);
  }
  const auto point = text.find('.');
  if (point == std::string_view::npos) return all_digits(text);
  const auto whole = text.substr(0, point);
  const auto part = text.substr(point + 1);
  return (whole.empty() || all_digits(whole)) && (part.empty() || all_digits(part)) &&
         (!whole.empty() || !part.empty());
}

bool has_leading_zero(std::string_view text) {
  text = without_sign(text);
  return text.size() > 1 && text[0] == '0' && is_digit(text[1]);
}

std::optional<double> real_value(std::string_view text) {
  text = without_plus(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::string without_underscores(std::string_view text) {
  std::string plain(text);
  std::erase(plain, '_');
  return plain;
}

/// The whole number in another base: 0x10, 0o17.
std::optional<std::int64_t> other_base(std::string_view text) {
  const int base = text.starts_with("0x") ? 16 : text.starts_with("0o") ? 8 : 0;
  if (base == 0) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data() + 2, text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "; write 1000" if the text can only mean one number; else empty.
std::string spelling_hint(std::string_view text, bool whole) {
  if (const auto value = other_base(text)) return fmt::format("; write {}", *value);
  std::string plain = without_underscores(text);
  if (!is_decimal(plain)) return "";
  while (has_leading_zero(plain)) plain.erase(is_digit(plain[0]) ? 0 : 1, 1);
  if (!whole) return fmt::format("; write {}", plain);
  if (all_digits(without_sign(plain))) return fmt::format("; write {}", plain);
  const auto value = real_value(plain);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!value || std::trunc(*value) != *value || std::abs(*value) > kExact) return "";
  return fmt::format("; write {:.0f}", *value);
}

/// Complains about nodes that no number can be read from; nothing if the text may be one.
std::optional<std::string> not_a_number(const Node& node, std::string_view expected, bool whole) {
  if (node.kind != Node::Kind::scalar) {
    return fmt::format("must be {}, found {}", expected, shown(node));
  }
  if (node.quoted) {
    const bool fits = is_decimal(node.text) && !has_leading_zero(node.text);
    return fmt::format("must be {}, found {}{}", expected, shown(node),
                       fits ? "; leave the quotes out" : "");
  }
  const std::string_view digits = without_sign(node.text);
  if (is_decimal(node.text) && has_leading_zero(node.text)) {
    return fmt::format("'{}' has a leading zero and looks octal{}", node.text,
                       spelling_hint(node.text, whole));
  }
  const bool spelled = whole ? all_digits(digits) : is_decimal(node.text);
  if (spelled) return std::nullopt;
  return fmt::format("must be {}, found '{}'{}", expected, node.text,
                     spelling_hint(node.text, whole));
}

}  // namespace

std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null: return "nothing";
    case Node::Kind::scalar:
      return node.quoted ? fmt::format("the text \"{}\"", node.text)
                         : fmt::format("'{}'", node.text);
    case Node::Kind::sequence: return "a list";
    case Node::Kind::map: return "a map";
  }
  return "";
}

Parsed<std::int64_t> parse_integer(const Node& node, const IntegerRange& range) {
  if (auto problem = not_a_number(node, "a whole number", true)) return {std::nullopt, *problem};
  const auto text = without_plus(node.text);
  std::int64_t value = 0;
  const auto error = std::from_chars(text.data(), text.data() + text.size(), value).ec;
  if (error != std::errc())
    return {std::nullopt, fmt::format("'{}' does not fit into 64 bits", text)};
  if (value < range.least || value > range.most) {
    return {std::nullopt, fmt::format("must be {}, found {}", range_text(range), text)};
  }
  return {value};
}

Parsed<double> parse_real(const Node& node, const RealRange& range) {
  if (auto problem = not_a_number(node, "a finite number", false)) return {std::nullopt, *problem};
  const auto value = real_value(node.text);
  if (!value) return {std::nullopt, fmt::format("'{}' is out of the range of a double", node.text)};
  if (!contains(range, *value)) {
    return {std::nullopt, fmt::format("must be {}, found {}", range_text(range), node.text)};
  }
  return {value};
}

Parsed<bool> parse_flag(const Node& node) {
  const bool plain = node.kind == Node::Kind::scalar && !node.quoted;
  if (plain && node.text == "true") return {true};
  if (plain && node.text == "false") return {false};
  return {std::nullopt, fmt::format("must be true or false, found {}", shown(node))};
}

Parsed<std::string> parse_text(const Node& node) {
  if (node.kind != Node::Kind::scalar)
    return {std::nullopt, fmt::format("must be a text, found {}", shown(node))};
  const bool broken = first_bad_byte(node.text).has_value() ||
                      node.text.find_first_of("\t\r\n") != std::string::npos;
  if (broken) return {std::nullopt, "must be one line of UTF-8 text without control characters"};
  return {node.text};
}

}  // namespace hyperslab::deck
