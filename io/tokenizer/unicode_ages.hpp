// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

/// Code points whose general category depends on the Unicode version of the regular expression
/// engine, and an old one to match instead, of as many bytes in UTF-8.
struct StandIn {
  std::uint32_t first;
  std::uint32_t last;
  std::uint32_t code_point;
};

/// Ascending. The categories are unicode_version()'s.
[[nodiscard]] std::span<const StandIn> stand_ins();

/// `text` (valid UTF-8) as any engine of Unicode 11 or later matches it alike: the text itself, or
/// `copy`, which gets it with stand-ins.
[[nodiscard]] std::string_view with_stand_ins(std::string_view text, std::string& copy);

}  // namespace hyperslab::io
