// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/arena.hpp"
#include "peer_memory.hpp"

namespace hyperslab::comm {

/// Collectives of two members over memory that their GPUs map into each other: copy engines move
/// the bytes, streams wait for flags, and multiprocessors only add. What computes beside them keeps
/// its multiprocessors; NCCL's blocks would wait until a product leaves them some. Among more
/// members it gained nothing: four H100 took 1.2 times as long as with NCCL.
///
/// To reduce, each sends the other its terms of what the other is to have, into a slot, and adds
/// what it gets, in fp32, rounded once. What goes to shared memory goes right to where it belongs.
///
/// Messages go in lanes: each member sends the other one at a time, in the same order on both.
/// Graphs have lanes of their own, so that eager calls may be under way beside them. In a lane,
/// nothing waits for what the other member does later than what it waits for itself.
class PeerCopies {
 public:
  /// Collective over `group`. Null, alike on all members, unless there are two that can map each
  /// other's memory (see PeerMemory), or if HYPERSLAB_PEER_COPIES is 0 on one of them.
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
  /// As in Communicator.
  [[nodiscard]] std::shared_ptr<void> share(void* memory, std::size_t bytes);
  [[nodiscard]] bool is_shared(CView view) const { return holder_of(view) != nullptr; }

  /// When a call begins and the capture that it is part of, 0 for none.
  struct Start {
    cudaEvent_t after = nullptr;
    unsigned long long capture = 0;
  };
  /// Elements [begin, begin + count) of each member's part of a view.
  struct Piece {
    Dim begin = 0;
    Dim count = 0;
  };
  /// What is enqueued on the stream that is returned follows the operation.
  [[nodiscard]] cudaStream_t all_reduce(const Start& start, View buffer);
  [[nodiscard]] cudaStream_t reduce_scatter(const Start& start, CView full, View shard);
  [[nodiscard]] cudaStream_t reduce_scatter_others(const Start& start, View full, View shard,
                                                   const Piece& piece);
  [[nodiscard]] cudaStream_t all_gather(const Start& start, CView shard, View full);
  [[nodiscard]] cudaStream_t all_gather_piece(const Start& start, View full, const Piece& piece);

 private:
  static constexpr int kSlots = 4;  ///< messages of a lane that may be under way
  enum class Kind : std::uint8_t { slots, direct };
  static constexpr int kLanes = 4;  ///< of each kind one of eager calls and one of graphs

  /// Of a slot, in the memory of the member that waits for it.
  struct Flags {
    std::uint32_t full;  ///< 1 while there is a message that this member has not read
    std::uint32_t free;  ///< 1 while this member may send the other one a message
  };
  struct Slot {
    Flags* flags = nullptr;      ///< of this member
    std::byte* place = nullptr;  ///< for the other's message; null if they are direct
    // Of the newest message.
    cudaEvent_t freed = nullptr;     ///< the other may be written to
    cudaEvent_t sent = nullptr;      ///< to the other
    cudaEvent_t received = nullptr;  ///< and read by this member
    unsigned long long capture = 0;
    bool used = false;
  };
  struct Lane {
    bool direct = false;
    int next = 0;
    cudaStream_t frees = nullptr;  ///< waits until the other may be written to
    cudaStream_t sends = nullptr;
    cudaStream_t receives = nullptr;
    std::array<Slot, kSlots> slots{};
  };

  PeerCopies(MPI_Comm group, const std::string& communicator, std::size_t place_bytes);
  void make_lanes();
  [[nodiscard]] Lane& lane(Kind kind, const Start& start) {
    return lanes_.at((start.capture != 0 ? 2 : 0) + static_cast<std::size_t>(kind));
  }
  [[nodiscard]] std::shared_ptr<const PeerMemory> holder_of(CView view) const;
  /// Sends `from` to `to`, an address on the other member as this one maps it, or into the lane's
  /// slot, and lets the receiving stream wait for what the other sends. Returns the slot, which
  /// release() ends.
  Slot& exchange(Lane& lane, const Start& start, const void* from, std::size_t bytes,
                 std::byte* to = nullptr);
  /// The receiving stream has read the slot.
  void release(Lane& lane, const Start& start, Slot& slot);
  /// An exchange that goes right to where it belongs.
  cudaStream_t send_direct(const Start& start, const void* from, std::size_t bytes, std::byte* to);
  /// Sends what lies at `theirs` and adds up `own` and what comes.
  cudaStream_t reduce(const Start& start, DType dtype, const std::byte* theirs,
                      const std::byte* own, std::byte* out, std::size_t bytes);
  template <class Pointer>
  [[nodiscard]] Pointer own_part(Pointer full, std::size_t part) const {
    return full + static_cast<std::size_t>(rank_) * part;
  }
  template <class Pointer>
  [[nodiscard]] Pointer other_part(Pointer full, std::size_t part) const {
    return full + static_cast<std::size_t>(1 - rank_) * part;
  }

  std::string communicator_;
  MPI_Comm group_;  ///< of the communicator that owns this
  int rank_;
  std::size_t place_bytes_;
  Buffer memory_;                       ///< flags and places of all slots
  std::unique_ptr<PeerMemory> mapped_;  ///< that memory; goes before it
  std::vector<std::weak_ptr<PeerMemory>> shared_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::array<Lane, kLanes> lanes_{};
};

}  // namespace hyperslab::comm
