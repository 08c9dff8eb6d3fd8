// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/batch_feed.hpp"

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::train {
namespace {

constexpr std::size_t kAhead = 8;  // microbatches

void copy_present(Context& ctx, const View& from, const View& to) {
  if (from && to && from.raw() != to.raw()) copy(ctx, from, to);
}

void copy_batch(Context& ctx, const Batch& from, const Batch& to) {
  copy_present(ctx, from.tokens, to.tokens);
  copy_present(ctx, from.targets, to.targets);
  copy_present(ctx, from.token_sort_index, to.token_sort_index);
  copy_present(ctx, from.sample_position, to.sample_position);
}

}  // namespace

BatchFeed::BatchFeed(Context& ctx, const Batch& like, std::size_t depth, int microbatches,
                     bool with_sort_index)
    : like_(like),
      device_(ctx.device()),
      depth_(depth),
      microbatches_(microbatches),
      with_sort_index_(with_sort_index) {
  require(depth > 0 && microbatches > 0, "a batch feed without room or microbatches");
}

Dim BatchFeed::samples() const {
  return (like_.tokens ? like_.tokens : like_.targets).dims<2>("batch views")[0];
}
Dim BatchFeed::length() const {
  return (like_.tokens ? like_.tokens : like_.targets).dims<2>("batch views")[1];
}

void BatchFeed::load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
                     const Batch& destination) {
  if (device_ == Device::meta) return;
  if (!prefetcher_) {
    // A CPU's copy is done on return; a step of several chunks comes back to its microbatches.
    const std::size_t held =
        device_ == Device::cuda ? depth_ : static_cast<std::size_t>(microbatches_);
    prefetcher_ = std::make_unique<Prefetcher>(device_, samples(), length(), with_sort_index_,
                                               microbatches_, kAhead, held);
  }
  copy_batch(ctx, prefetcher_->take(loader, {step, microbatch}), destination);
}

void BatchFeed::release() {
  if (prefetcher_) prefetcher_->release();
}

Batch BatchFeed::next() {
  if (device_ != Device::cuda) return like_;
  for (std::size_t i = staging_.size(); i < depth_; ++i) {
    staging_.emplace_back(device_, samples(), length(), static_cast<bool>(like_.token_sort_index));
  }
  at_ = (at_ + 1) % staging_.size();
  return staging_[at_].views();
}

void BatchFeed::upload(Context& ctx) const { upload(ctx, like_); }

void BatchFeed::upload(Context& ctx, const Batch& destination) const {
  copy_batch(ctx, device_ == Device::cuda ? staging_[at_].views() : like_, destination);
}

}  // namespace hyperslab::train
