// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

namespace hyperslab::deck {

/// Length of the well-formed UTF-8 sequence (Unicode 15, table 3-7) at the start of `text`; 0 if
/// there is none.
[[nodiscard]] int utf8_length(std::string_view text);

/// Index of the first byte that is no text: not UTF-8, or a control character but tab and line end.
[[nodiscard]] std::optional<std::size_t> first_bad_byte(std::string_view text);

}  // namespace hyperslab::deck
