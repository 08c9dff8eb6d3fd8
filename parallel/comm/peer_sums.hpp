// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/view.hpp"
#include "peer_memory.hpp"

namespace hyperslab::comm {

/// Sums of small buffers of two members in one kernel of each: it writes the buffer to the other
/// GPU, sets a flag there, waits for its own and adds ("one-shot"). A message of a few thousand
/// elements is all latency, and NCCL has more of it. Both members get the same bits.
///
/// Messages alternate between two slots: a member writes to one again only after the other's next
/// message has come, which the other sends once it has read the one before. Calls in graphs have
/// slots of their own, as eager ones may be in progress beside them.
class PeerSums {
 public:
  /// Collective over `group`, which must outlive it. Null, alike on both members, if they cannot
  /// map each other's memory (PeerMemory).
  [[nodiscard]] static std::unique_ptr<PeerSums> make(MPI_Comm group,
                                                      const std::string& communicator);

  /// True if a sum of `buffer` is worth it, alike on both members: floats, at most kMostBytes. It
  /// is fastest if they begin and end at multiples of 16 bytes.
  [[nodiscard]] static bool takes(CView buffer);
  /// Enqueues buffer = its sum over both members. `captured`: the stream is being captured.
  [[nodiscard]] cudaError_t all_reduce(cudaStream_t stream, View buffer, bool captured);

  static constexpr std::size_t kMostBytes = std::size_t{256} << 10;

 private:
  PeerSums(MPI_Comm group, const std::string& communicator);

  Buffer memory_;                       ///< slots and flags
  std::unique_ptr<PeerMemory> mapped_;  ///< maps memory_; ends before it
};

}  // namespace hyperslab::comm
