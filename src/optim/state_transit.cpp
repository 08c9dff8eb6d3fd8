// SPDX-License-Identifier: Apache-2.0
#include "state_transit.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::optim {
namespace {

constexpr Dim kMostElements = Dim{1} << 23;  // 32 MiB of f32: a copy takes its full rate
constexpr std::size_t kMostPassing = 3;      // one comes, one is updated, one goes

}  // namespace

StateTransit::StateTransit(std::vector<param::StateView> buffers, const StatePlace::OnHost& host,
                           Arena& device)
    : buffers_(std::move(buffers)), here_(buffers_.size()) {
  const auto largest = std::ranges::max_element(host.ranges, {}, &param::ElementRange::size);
  chunk_elements_ = largest == host.ranges.end() ? 0 : std::min(kMostElements, largest->size);
  std::size_t left = host.resident_bytes;
  Dim most = 0;
  std::size_t passing = 0;
  for (const param::ElementRange& range : host.ranges) {
    std::size_t& moved = moved_bytes_.emplace_back(0);
    for (Dim begin = 0; begin < range.size; begin += chunk_elements_) {
      const Dim elements = std::min(chunk_elements_, range.size - begin);
      if (passing == 0 && bytes_of(elements) <= left) {
        left -= bytes_of(elements);
        resident_.push_back(slot_in(device, elements));
        continue;
      }
      moved += bytes_of(elements);
      most = std::max(most, elements);
      ++passing;
    }
  }
  for (std::size_t i = 0; i < std::min(kMostPassing, passing); ++i) {
    passing_.push_back(slot_in(device, most));
  }
}

StateTransit::Slot StateTransit::slot_in(Arena& device, Dim elements) const {
  Slot slot;
  for (const param::StateView& buffer : buffers_) {
    slot.buffers.push_back(device.take(buffer.data.dtype(), {elements}, "state of a chunk"));
  }
  return slot;
}

/// Bytes of so many elements of all buffers.
std::size_t StateTransit::bytes_of(Dim elements) const {
  std::size_t bytes = 0;
  for (const param::StateView& buffer : buffers_) {
    bytes += static_cast<std::size_t>(elements) * size_of(buffer.data.dtype());
  }
  return bytes;
}

StateTransit::Slot& StateTransit::slot_of(std::size_t number) {
  return stays(number) ? resident_[number]
                       : passing_[(number - resident_.size()) % passing_.size()];
}

void StateTransit::begin(Context& ctx) {
  if (!links_) links_ = std::make_unique<Links>(ctx.device());
  links_->to_device.wait(ctx.stream().record());
  number_ = 0;
}

std::span<const View> StateTransit::bring(Context& ctx, const param::ElementRange& chunk) {
  Slot& slot = slot_of(number_);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    here_[i] = slot.buffers[i].slice(0, chunk.size);
  }
  // A plan's step is one of many: chunks that stay are there.
  if (slot.is_newer || (stays(number_) && ctx.device() == Device::meta)) return here_;
  // Slots are freed in turn: what the chunk's own last update wrote is on the host by then, too.
  links_->to_device.wait(slot.free);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    copy(links_->to_device, buffers_[i].at(chunk), here_[i]);
  }
  ctx.stream().list_transfer(links_->to_device, bytes_of(chunk.size));
  ctx.stream().wait(links_->to_device.record());
  return here_;
}

void StateTransit::take_back(Context& ctx, const param::ElementRange& chunk) {
  Slot& slot = slot_of(number_);
  slot.chunk = chunk;
  slot.is_newer = true;
  if (!stays(number_++)) {
    links_->to_host.wait(ctx.stream().record());
    send_back(slot);
  }
}

void StateTransit::send_back(Slot& slot) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    copy(links_->to_host, slot.buffers[i].slice(0, slot.chunk.size), buffers_[i].at(slot.chunk));
  }
  slot.is_newer = false;
  slot.free = links_->to_host.record();
}

void StateTransit::wait(Context& ctx) {
  if (!links_) return;
  links_->to_host.wait(ctx.stream().record());
  for (Slot& slot : resident_) {
    if (slot.is_newer) send_back(slot);
  }
  ctx.stream().wait(links_->to_host.record());
}

}  // namespace hyperslab::optim
