// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/host_feed.hpp"

#include <algorithm>

#include "batch_views.hpp"
#include "hyperslab/core/error.hpp"
#include "image_feed.hpp"
#include "token_cut.hpp"

namespace hyperslab::train {
namespace {

constexpr std::size_t kMostAhead = 8;  // microbatches
constexpr std::size_t kLeastAhead = 2;
constexpr std::size_t kAheadBytes = std::size_t{256} << 20;  // memory of microbatches loaded ahead

std::size_t ahead_of(const Batch& like) {
  const std::size_t fitting = kAheadBytes / std::max<std::size_t>(1, bytes_of(like));
  return std::clamp(fitting, kLeastAhead, kMostAhead);
}

}  // namespace

std::unique_ptr<BatchFeed> make_feed(Context& ctx, const Batch& like, const FeedOptions& options) {
  if (ctx.device() == Device::cuda && like.patches) {
    return std::make_unique<ImageFeed>(like, options);
  }
  return std::make_unique<HostFeed>(ctx, like, options);
}

HostFeed::HostFeed(Context& ctx, const Batch& like, const FeedOptions& options)
    : like_(like),
      device_(ctx.device()),
      options_(options),
      cut_(std::make_unique<TokenCut>(like, options.tokens)) {
  require(options.depth > 0 && options.microbatches > 0,
          "a batch feed without room or microbatches");
  if (!options.with_sort_index) like_.token_sort_index = View();
}

void HostFeed::load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
                    const Batch& destination) {
  if (device_ == Device::meta) return;
  if (!prefetcher_) {
    // A CPU's copy is done on return; a step of several chunks comes back to its microbatches.
    const std::size_t held =
        device_ == Device::cuda ? options_.depth : static_cast<std::size_t>(options_.microbatches);
    prefetcher_ = std::make_unique<Prefetcher>(device_, like_, options_.tokens,
                                               options_.microbatches, ahead_of(like_), held);
  }
  copy_batch(ctx, prefetcher_->take(loader, {step, microbatch}), destination);
}

void HostFeed::load(Context& ctx, const Part& part, const Batch& destination) {
  if (device_ == Device::meta) return;
  const Batch batch = next();
  cut_->read(batch, [&](const Batch& whole) { part.samples.read(part.first, part.end, whole); });
  Batch without_position = destination;
  without_position.sample_position = View();
  without_position.token_sort_index = View();
  copy_batch(ctx, batch, without_position);
}

HostFeed::~HostFeed() = default;

void HostFeed::release() {
  if (prefetcher_) prefetcher_->release();
}

Batch HostFeed::next() {
  if (device_ != Device::cuda) return like_;
  for (std::size_t i = staging_.size(); i < options_.depth; ++i) {
    staging_.emplace_back(device_, like_);
  }
  at_ = (at_ + 1) % staging_.size();
  return staging_[at_].views();
}

}  // namespace hyperslab::train
