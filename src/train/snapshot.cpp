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

std::size_t snapshot_bytes(const std::vector<io::Slab>& slabs) {
  std::size_t bytes = 0;
  for (const io::Slab& slab : slabs) {
    if (slab.owner == nullptr) bytes += round_up(slab.data.bytes(), kAlignment);
  }
  return bytes;
}

SnapshotBuffer::SnapshotBuffer(Device device, std::size_t bytes)
    : memory_(device, bytes), stream_(device, HostWork::by_thread) {}

Snapshot SnapshotBuffer::take(Context& ctx, std::vector<io::Slab> slabs) {
  require(snapshot_bytes(slabs) <= memory_.bytes(), "a snapshot is larger than its buffer");
  stream_.wait(ctx.stream().record());
  auto* next = static_cast<std::byte*>(memory_.data());
  for (io::Slab& slab : slabs) {
    if (slab.owner != nullptr) continue;  // a copy already
    const View copied(next, slab.data.dtype(), Device::cpu, slab.part.count);
    if (slab.data.numel() > 0) copy(stream_, slab.data, copied);
    next += round_up(slab.data.bytes(), kAlignment);
    slab.data = copied;
  }
  return {std::move(slabs), stream_.record()};
}

}  // namespace hyperslab::train
