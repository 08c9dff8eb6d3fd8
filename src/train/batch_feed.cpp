// SPDX-License-Identifier: Apache-2.0
#include "batch_feed.hpp"

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::train {
namespace {

/// The views of a microbatch in `memory`, one behind the other, the widest elements first.
io::Microbatch views_in(void* memory, const model::BatchViews& like) {
  auto* place = static_cast<std::byte*>(memory);
  const auto take = [&](const View& view) {
    const View host(place, view.dtype(), Device::cpu, view.shape());
    place += view.bytes();
    return host;
  };
  io::Microbatch out;
  out.sample_position = take(like.sample_position);
  out.tokens = take(like.tokens);
  out.targets = take(like.targets);
  out.order = take(like.order);
  return out;
}

}  // namespace

BatchFeed::BatchFeed(Context& ctx, const model::BatchViews& destination, std::size_t depth)
    : destination_(destination) {
  if (ctx.device() != Device::cuda) return;
  const std::size_t bytes = destination.sample_position.bytes() + destination.tokens.bytes() +
                            destination.targets.bytes() + destination.order.bytes();
  for (std::size_t i = 0; i < depth; ++i) staging_.emplace_back(Device::cuda, bytes);
}

io::Microbatch BatchFeed::next() {
  if (staging_.empty()) {
    return {destination_.tokens, destination_.targets, destination_.order,
            destination_.sample_position};
  }
  at_ = (at_ + 1) % staging_.size();
  return views_in(staging_[at_].data(), destination_);
}

void BatchFeed::upload(Context& ctx) const {
  if (staging_.empty()) return;
  const io::Microbatch host = views_in(staging_[at_].data(), destination_);
  copy(ctx, host.tokens, destination_.tokens);
  copy(ctx, host.targets, destination_.targets);
  copy(ctx, host.order, destination_.order);
  copy(ctx, host.sample_position, destination_.sample_position);
}

}  // namespace hyperslab::train
