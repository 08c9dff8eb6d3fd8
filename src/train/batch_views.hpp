// SPDX-License-Identifier: Apache-2.0
// All views of a batch, one after the other.
#pragma once

#include <cstddef>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::train {

[[nodiscard]] inline std::size_t bytes_of(const Batch& batch) {
  std::size_t bytes = 0;
  for (const auto view : kBatchViews) bytes += batch.*view ? (batch.*view).bytes() : 0;
  return bytes;
}

/// Adds the views that `to` lacks.
inline void add_missing(const Batch& from, Batch& to) {
  for (const auto view : kBatchViews) {
    if (!(to.*view)) to.*view = from.*view;
  }
}

/// Copies the views that both have, and that are not the same memory.
inline void copy_batch(Context& ctx, const Batch& from, const Batch& to) {
  for (const auto view : kBatchViews) {
    const View& source = from.*view;
    const View& target = to.*view;
    if (source && target && source.raw() != target.raw()) copy(ctx, source, target);
  }
}

}  // namespace hyperslab::train
