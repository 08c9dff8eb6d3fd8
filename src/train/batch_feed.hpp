// SPDX-License-Identifier: Apache-2.0
// Tokens on their way from the loader to the stage's input views.
#pragma once

#include <vector>

#include "hyperslab/io/dataset.hpp"
#include "hyperslab/model/stage.hpp"

namespace hyperslab::train {

/// On the CPU the loader fills the stage's views themselves. On a GPU it fills page-locked memory,
/// from which a copy is enqueued; `depth` microbatches may be on their way at once.
class BatchFeed {
 public:
  BatchFeed(Context& ctx, const model::BatchViews& destination, std::size_t depth);

  /// Host memory for the next microbatch.
  [[nodiscard]] io::Microbatch next();
  /// Enqueues the copy of what next() gave and the caller filled.
  void upload(Context& ctx) const;

 private:
  model::BatchViews destination_;
  std::vector<PinnedBuffer> staging_;  ///< empty on the CPU and on meta
  std::size_t at_ = 0;
};

}  // namespace hyperslab::train
