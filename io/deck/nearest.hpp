// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

/// "6 or 8": the divisors of `number` next below and above `near`, for which `fits` holds.
[[nodiscard]] std::string nearest_divisors(std::int64_t number, std::int64_t near,
                                           bool (*fits)(std::int64_t number, std::int64_t divisor));

/// "24 or 32": the positive multiples of `unit` next below and above `near`.
[[nodiscard]] std::string nearest_multiples(std::int64_t unit, std::int64_t near);

}  // namespace hyperslab::deck
