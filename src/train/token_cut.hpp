// SPDX-License-Identifier: Apache-2.0
// Samples are read whole, and a context rank keeps its tokens of them.
#pragma once

#include <optional>
#include <vector>

#include "hyperslab/train/batch_feed.hpp"
#include "hyperslab/train/prefetcher.hpp"

namespace hyperslab::train {

/// Cuts a rank's tokens out of whole samples. Targets were shifted before, so that the last token
/// of a part predicts the first of the next part. Not to be called by several threads at once.
class TokenCut {
 public:
  /// `like`: the views of the part.
  TokenCut(const Batch& like, const TokenPart& part);

  /// Calls read(batch), which fills a batch of whole samples, and leaves this rank's part in `out`.
  /// Samples of which the part is all are read right into `out`.
  template <class Read>
  void read(const Batch& out, Read&& read) {
    if (!whole_) return read(out);
    read(whole_->views());
    cut(out);
  }

 private:
  void cut(const Batch& out);

  TokenPart part_;
  std::optional<HostBatch> whole_;  ///< absent: the part is all
  std::vector<std::int32_t> scratch_;
};

}  // namespace hyperslab::train
