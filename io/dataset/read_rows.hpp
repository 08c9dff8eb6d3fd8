// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {

/// The first token of every token's document, in its sample: 0, and the token after each end_token.
inline void find_first_keys(std::span<const std::int32_t> tokens, std::int32_t end_token,
                            std::span<std::int32_t> first_keys) {
  std::int32_t first = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    first_keys[t] = first;
    if (end_token >= 0 && tokens[t] == end_token) first = static_cast<std::int32_t>(t) + 1;
  }
}

/// Samples [first, first + B) into the rows of `out`: read_one(index, tokens, targets) each. Those
/// from `end` on are filled with values that do not count. `end_token` ends documents; -1: none.
template <class ReadOne>
void read_rows(std::int64_t first, std::int64_t end, const Batch& out, std::int32_t end_token,
               ReadOne&& read_one) {
  const Dim B = out.tokens.dims<2>("tokens")[0];
  for (Dim b = 0; b < B; ++b) {
    const auto tokens = out.tokens.slice(b, 1).span<std::int32_t>();
    const auto targets = out.targets.slice(b, 1).span<std::int32_t>();
    if (first + b < end) {
      read_one(first + b, tokens, targets);
    } else {
      std::ranges::fill(tokens, 0);
      std::ranges::fill(targets, ops::kIgnoredTarget);
    }
    if (!out.first_keys) continue;
    find_first_keys(tokens, end_token, out.first_keys.slice(b, 1).span<std::int32_t>());
  }
}

}  // namespace hyperslab::io
