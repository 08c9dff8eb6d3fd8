// SPDX-License-Identifier: Apache-2.0
#include "state_transit.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::optim {
namespace {

constexpr Dim kMostElements = Dim{1} << 23;  // 32 MiB of f32: a copy takes its full rate

}  // namespace

StateTransit::StateTransit(std::vector<param::StateView> buffers, Arena& device)
    : buffers_(std::move(buffers)),
      chunk_elements_(std::min(kMostElements, buffers_.front().data.numel())),
      here_(buffers_.size()) {
  for (Slot& slot : slots_) {
    for (const param::StateView& buffer : buffers_) {
      slot.buffers.push_back(
          device.take(buffer.data.dtype(), {chunk_elements_}, "state of a chunk"));
    }
  }
}

/// Bytes of all buffers of a chunk.
std::size_t StateTransit::bytes_of(const param::ElementRange& chunk) const {
  std::size_t bytes = 0;
  for (const param::StateView& buffer : buffers_) {
    bytes += static_cast<std::size_t>(chunk.size) * size_of(buffer.data.dtype());
  }
  return bytes;
}

void StateTransit::begin(Context& ctx) {
  if (!links_) links_.emplace(ctx.device());
  links_->to_device.wait(ctx.stream().record());
}

std::span<const View> StateTransit::bring(Context& ctx, const param::ElementRange& chunk) {
  const Slot& slot = slots_[next_];
  // Slots are freed in turn: what the chunk's own last update wrote is on the host by then, too.
  links_->to_device.wait(slot.free);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    here_[i] = slot.buffers[i].slice(0, chunk.size);
    copy(links_->to_device, buffers_[i].at(chunk), here_[i]);
  }
  ctx.stream().list_transfer(links_->to_device, bytes_of(chunk));
  ctx.stream().wait(links_->to_device.record());
  return here_;
}

void StateTransit::take_back(Context& ctx, const param::ElementRange& chunk) {
  links_->to_host.wait(ctx.stream().record());
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    copy(links_->to_host, here_[i], buffers_[i].at(chunk));
  }
  slots_[next_].free = links_->to_host.record();
  next_ = (next_ + 1) % kSlots;
}

void StateTransit::wait(Context& ctx) {
  if (links_) ctx.stream().wait(links_->to_host.record());
}

}  // namespace hyperslab::optim
