// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hyperslab::io {

/// The first key that stands twice in one object of `json`, of which a parser would keep one value
/// without a word. Nothing if there is none before the first error of syntax. Takes n log n time.
[[nodiscard]] std::optional<std::string> repeated_key(std::string_view json);

}  // namespace hyperslab::io
