// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "hyperslab/deck/reference.hpp"

namespace hyperslab::deck {

/// Insertions, deletions, replacements and swaps of neighbours between two words (optimal string
/// alignment distance).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

/// True if `word` may be a slip of `known`: an edit, or one for every three letters of `known`.
[[nodiscard]] bool is_near(std::string_view word, std::string_view known);

/// "6 or 8": the divisors of `number` next below and above `near` that fit. "0": there are none.
[[nodiscard]] std::string nearest_divisors(
    std::int64_t number, std::int64_t near,
    const std::function<bool(std::int64_t divisor)>& fits = [](std::int64_t) { return true; });

/// "24 or 32": the positive multiples of `unit` next below and above `near`.
[[nodiscard]] std::string nearest_multiples(std::int64_t unit, std::int64_t near);

}  // namespace hyperslab::deck
