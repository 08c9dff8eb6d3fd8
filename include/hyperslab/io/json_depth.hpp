// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace hyperslab::io {

/// Lists and objects within each other that a file of JSON may have: its readers call themselves.
inline constexpr int kDeepestJson = 64;

/// True if a text of JSON is nested deeper than that. To be asked before it is parsed.
[[nodiscard]] bool is_too_deep(std::string_view json);

}  // namespace hyperslab::io
