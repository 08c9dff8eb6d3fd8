// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/data/reducer.hpp"

#include <algorithm>

namespace hyperslab::data {

GradientReducer::GradientReducer(const nn::ParamTable& params, comm::Communicator& group)
    : params_(params), group_(group), next_bucket_(static_cast<int>(params.buckets().size()) - 1) {
  tickets_.reserve(params.buckets().size());
  const Dim share = (params.flat_size() + group.size() - 1) / group.size();
  norm_begin_ = std::min(params.flat_size(), share * group.rank());
  norm_end_ = std::min(params.flat_size(), norm_begin_ + share);
}

void GradientReducer::unit_done(Context& ctx, int unit) {
  if (group_.size() == 1) return;
  const auto& buckets = params_.buckets();
  while (next_bucket_ >= 0 && buckets[static_cast<std::size_t>(next_bucket_)].first_unit >= unit) {
    const nn::Bucket& bucket = buckets[static_cast<std::size_t>(next_bucket_--)];
    const View gradients = params_.gradient().slice(bucket.begin, bucket.size());
    tickets_.push_back(group_.all_reduce(ctx, gradients, comm::ReduceOp::sum));
  }
}

void GradientReducer::progress() {
  if (!tickets_.empty()) group_.progress();
}

void GradientReducer::finish(Context& ctx) {
  for (const comm::Ticket ticket : tickets_) group_.wait(ctx, ticket);
  tickets_.clear();
  next_bucket_ = static_cast<int>(params_.buckets().size()) - 1;
}

}  // namespace hyperslab::data
