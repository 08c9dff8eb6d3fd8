// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "peer_memory.hpp"

namespace hyperslab::comm {

/// Collectives over memory that the GPUs of one host map into each other: copy engines move the
/// bytes, streams wait for flags, and multiprocessors only add. What computes beside them keeps its
/// multiprocessors; NCCL's blocks would wait until a product leaves them some.
///
/// A reduction has each member send its terms of every other member's part to that member, which
/// adds them in the order of the ranks, in fp32, and rounds once; an all_reduce of more than two
/// then gathers the sums. Two members send each other all of the buffer and both add. Messages go
/// in lanes: every member sends one to every other, in the same order everywhere. Works in graphs:
/// eager calls and those of graphs have lanes of their own, and no call waits for what it does not
/// follow in the order of its lane.
class PeerCopies {
 public:
  /// Collective over `group`. Null, alike on all members, if they are not all GPUs of one host that
  /// NVLink connects, if they cannot map each other's memory, or if HYPERSLAB_PEER_COPIES is 0.
  [[nodiscard]] static std::unique_ptr<PeerCopies> make(MPI_Comm group,
                                                        const std::string& communicator);
  /// Collective, after everything enqueued is done.
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;
  PeerCopies(PeerCopies&&) = delete;
  PeerCopies& operator=(PeerCopies&&) = delete;

  /// Whether a call is worth it and possible; if not, it is NCCL's. `full`: the unsharded side.
  [[nodiscard]] bool takes(Call call, CView full, CView shard, ReduceOp op) const;

  /// When a call begins and the capture that it is part of, 0 for none.
  struct Start {
    cudaEvent_t after = nullptr;
    unsigned long long capture = 0;
  };
  /// What is enqueued on the stream that is returned follows the operation.
  [[nodiscard]] cudaStream_t all_reduce(const Start& start, View buffer);
  [[nodiscard]] cudaStream_t reduce_scatter(const Start& start, CView full, View shard);
  [[nodiscard]] cudaStream_t all_gather(const Start& start, CView shard, View full);

 private:
  static constexpr int kSlots = 4;  ///< messages of a lane that may be under way
  enum class Kind : std::uint8_t { terms, sums };

  /// The events of the newest message that used a slot.
  struct Slot {
    cudaEvent_t freed = nullptr;     ///< every receiver has said that it has read it
    cudaEvent_t sent = nullptr;      ///< to all receivers
    cudaEvent_t received = nullptr;  ///< and read by this member
    unsigned long long capture = 0;
    bool used = false;
  };
  struct Lane {
    int first_slot = 0;  ///< of the memory
    int next = 0;
    cudaStream_t frees = nullptr;  ///< waits until slots are free
    cudaStream_t sends = nullptr;
    cudaStream_t receives = nullptr;
    std::array<Slot, kSlots> slots{};
  };

  PeerCopies(const std::string& communicator, PeerMemory memory);
  [[nodiscard]] Lane& lane(Kind kind, const Start& start) {
    return lanes_.at((start.capture != 0 ? 2 : 0) + static_cast<std::size_t>(kind));
  }
  /// Sends part `to` of `from`, whose parts are `stride` apart, to every other member, and lets the
  /// receiving stream wait for theirs. Returns the slot.
  int exchange(Lane& lane, const Start& start, const std::byte* from, std::size_t stride,
               std::size_t bytes);
  /// The receiving stream has read the slot.
  void release(Lane& lane, const Start& start, int slot);
  void add(Lane& lane, int slot, DType dtype, const std::byte* own, std::byte* out,
           std::size_t bytes);
  /// Sends `own` to all others, and puts what they send into their parts of `full`.
  void gather(Lane& lane, const Start& start, const std::byte* own, std::byte* full,
              std::size_t stride, std::size_t bytes);
  [[nodiscard]] std::size_t most_bytes() const { return memory_.slot_bytes(); }

  std::string communicator_;
  PeerMemory memory_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  cudaEvent_t added_ = nullptr;
  std::array<Lane, 4> lanes_{};  ///< eager terms and sums, those of graphs
};

}  // namespace hyperslab::comm
