// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace hyperslab::io {

/// Bytes at the beginning of `text` that are valid UTF-8.
[[nodiscard]] std::size_t valid_utf8_prefix(std::string_view text);

}  // namespace hyperslab::io
