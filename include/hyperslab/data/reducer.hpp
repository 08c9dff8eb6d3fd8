// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/nn/param.hpp"

namespace hyperslab::data {

/// Sums gradients over the data group, bucket by bucket, while backward still runs. In the last
/// microbatch of a step the caller says which unit is done; the all-reduce of a bucket starts as
/// soon as all its units are.
class GradientReducer {
 public:
  GradientReducer(const nn::ParamTable& params, comm::Communicator& group);

  /// Backward of `unit` (and of all later ones) is enqueued; starts what became ready.
  void unit_done(Context& ctx, int unit);
  /// Lets reductions under way advance; called between units.
  void progress();
  /// What is enqueued on ctx after this call sees reduced gradients.
  void finish(Context& ctx);

  /// The part of the flat space whose squares this rank counts, so that every element counts once:
  /// all ranks hold equal sums, each takes an equal share.
  [[nodiscard]] Dim norm_begin() const { return norm_begin_; }
  [[nodiscard]] Dim norm_end() const { return norm_end_; }

 private:
  const nn::ParamTable& params_;
  comm::Communicator& group_;
  int next_bucket_;  ///< counts down; buckets close from the last to the first
  std::vector<comm::Ticket> tickets_;
  Dim norm_begin_ = 0;
  Dim norm_end_ = 0;
};

}  // namespace hyperslab::data
