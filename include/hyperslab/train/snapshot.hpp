// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/core/stream.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::train {

/// A rank's part of a checkpoint, copied to the host: later steps do not change it.
struct Snapshot {
  std::vector<io::Slab> slabs;  ///< in the memory of a SnapshotBuffer
  Event ready;                  ///< complete when everything is copied
};

/// Memory of the host for one snapshot, page-locked on a GPU, and the stream that copies there.
class SnapshotBuffer {
 public:
  /// Throws OutOfMemory.
  SnapshotBuffer(Device device, std::size_t bytes);
  /// The bytes that a slab of so many bytes takes of the buffer.
  [[nodiscard]] static std::size_t room_bytes(std::size_t bytes);

  /// Copies beside all work enqueued on the compute stream from now on; slabs that own their data
  /// stay as they are. The snapshot before is gone, so no one may read it any more. Throws
  /// Error(internal) if the slabs need more than the buffer has.
  [[nodiscard]] Snapshot take(Context& ctx, std::vector<io::Slab> slabs);

 private:
  PinnedBuffer memory_;
  Stream stream_;
};

}  // namespace hyperslab::train
