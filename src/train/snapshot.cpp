// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/snapshot.hpp"

#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::train {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

std::size_t SnapshotBuffer::room_bytes(std::size_t bytes) { return round_up(bytes, kAlignment); }

SnapshotBuffer::SnapshotBuffer(Device device, std::size_t bytes)
    : memory_(device, bytes), stream_(device, HostWork::by_thread) {}

Snapshot SnapshotBuffer::take(Context& ctx, std::vector<io::Slab> slabs) {
  stream_.wait(ctx.stream().record());
  auto* const begin = static_cast<std::byte*>(memory_.data());
  std::size_t used = 0;
  for (io::Slab& slab : slabs) {
    if (slab.owner != nullptr) continue;  // a copy already
    const std::size_t end = used + room_bytes(slab.data.bytes());
    require(end <= memory_.bytes(), "a snapshot is larger than its buffer");
    const View copied(begin + used, slab.data.dtype(), Device::cpu, slab.part.count);
    if (slab.data.numel() > 0) copy(stream_, slab.data, copied);
    used = end;
    slab.data = copied;
  }
  return {std::move(slabs), stream_.record()};
}

}  // namespace hyperslab::train
