// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "schema.hpp"
#include "tree.hpp"

namespace hyperslab::deck {

/// A value, or what is wrong with the node.
template <class T>
struct Parsed {
  std::optional<T> value;
  std::string problem = {};
};

/// Whole numbers in plain decimal; everything YAML might read otherwise (010, 0x10, 1_000, 1e3,
/// "12") is refused with the spelling that is meant.
[[nodiscard]] Parsed<std::int64_t> parse_integer(const Node& node, const IntegerRange& range);
/// Finite decimal numbers.
[[nodiscard]] Parsed<double> parse_real(const Node& node, const RealRange& range);
/// true or false.
[[nodiscard]] Parsed<bool> parse_flag(const Node& node);
/// Any scalar without control characters.
[[nodiscard]] Parsed<std::string> parse_text(const Node& node);

/// The node as messages show it: 'abc', "a list", "a map", "nothing".
[[nodiscard]] std::string shown(const Node& node);

}  // namespace hyperslab::deck
