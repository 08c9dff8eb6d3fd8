// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {

/// Samples [first, first + B) into the rows of `out`: read_one(index, tokens, targets) each. Those
/// from `end` on are replaced by what does not count.
template <class ReadOne>
void read_rows(std::int64_t first, std::int64_t end, const Batch& out, ReadOne&& read_one) {
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
  }
}

}  // namespace hyperslab::io
