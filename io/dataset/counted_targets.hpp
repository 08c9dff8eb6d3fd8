// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// targets: the tokens of `source` from `first` on, after the token `before`; those that do not
/// count by the rules or the source's mask become ops::kIgnoredTarget.
void ignore_targets(const TokenSource& source, const TargetRules& rules, std::int64_t first,
                    std::int32_t before, std::span<std::int32_t> targets);

/// Reads the targets [first, first + count), first > 0, and returns the number that counts.
[[nodiscard]] std::int64_t count_targets(const TokenSource& source, const TargetRules& rules,
                                         std::int64_t first, std::int64_t count);

/// Likewise, and returns the sum of the weights of those.
[[nodiscard]] double sum_weights(const TokenSource& source, const TargetRules& rules,
                                 std::int64_t first, std::int64_t count);

}  // namespace hyperslab::io
