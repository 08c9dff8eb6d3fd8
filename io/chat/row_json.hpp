// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hyperslab::io {

/// The object that a line of JSON holds, with keys in their order. Throws Error(data) without the
/// place of the line for anything else: no JSON in UTF-8, nesting deeper than kDeepestJson, a key
/// that stands twice in one object, numbers beyond 64 bits.
[[nodiscard]] nlohmann::ordered_json read_row(std::string_view line);

/// JSON as Python's json.dumps(value, ensure_ascii=False) writes it.
[[nodiscard]] std::string python_json(const nlohmann::ordered_json& value);

}  // namespace hyperslab::io
