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
#include "peer_slots.hpp"

namespace hyperslab::comm {

/// Collectives over memory that the GPUs of one host map into each other: copy engines move the
/// bytes, streams wait for flags, and multiprocessors only add. What computes beside them keeps its
/// multiprocessors; NCCL's blocks would wait until a product leaves them some.
///
/// A reduction has each member send its terms of every other member's part to that member, which
/// adds them in the order of the ranks, in fp32, and rounds once; an all_reduce of more than two
/// then gathers the sums. Two members send each other all of the buffer, and both add. Messages
/// lie in slots until they are read, or go right to where they belong if the buffer is shared.
///
/// Messages go in lanes: every member sends one to every other, in the same order everywhere.
/// Graphs have lanes of their own, so that eager calls may be under way beside them; within a lane,
/// nothing waits for what comes later on another member.
class PeerCopies {
 public:
  /// Collective over `group`. Null, alike on all members, if they cannot map each other's memory
  /// (see PeerMemory), or if HYPERSLAB_PEER_COPIES is 0 on one of them.
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
  /// What is enqueued on the stream that is returned follows the operation.
  [[nodiscard]] cudaStream_t all_reduce(const Start& start, View buffer);
  [[nodiscard]] cudaStream_t reduce_scatter(const Start& start, CView full, View shard);
  [[nodiscard]] cudaStream_t reduce_scatter_others(const Start& start, View full, View shard,
                                                   Dim begin, Dim count);
  [[nodiscard]] cudaStream_t all_gather_piece(const Start& start, View full, Dim begin, Dim count);
  [[nodiscard]] cudaStream_t all_gather(const Start& start, CView shard, View full);

 private:
  static constexpr int kSlots = 4;  ///< messages of a lane that may be under way
  /// What goes through a lane.
  enum class Kind : std::uint8_t {
    terms,   ///< to be added, through places
    copies,  ///< through places
    direct,  ///< right to where it belongs
  };
  static constexpr int kKinds = 3;
  static constexpr int kLanes = 2 * kKinds;  ///< eager and in graphs

  /// The events of the newest message that used a slot.
  struct Slot {
    cudaEvent_t freed = nullptr;     ///< all others may be written to
    cudaEvent_t sent = nullptr;      ///< to all others
    cudaEvent_t received = nullptr;  ///< and read by this member
    unsigned long long capture = 0;
    bool used = false;
  };
  struct Lane {
    bool direct = false;
    int first_slot = 0;
    int next = 0;
    cudaStream_t frees = nullptr;  ///< waits until others may be written to
    cudaStream_t sends = nullptr;
    cudaStream_t receives = nullptr;
    std::array<Slot, kSlots> slots{};
  };
  /// A message for member m: `bytes` at from + m from_stride, for to + m to_stride on that member,
  /// by the address that the same memory has on this one; `memory` holds it. Without, for the slot.
  struct Message {
    const std::byte* from = nullptr;
    std::size_t from_stride = 0;
    std::size_t bytes = 0;
    std::shared_ptr<const PeerMemory> memory = nullptr;
    std::byte* to = nullptr;
    std::size_t to_stride = 0;
  };

  PeerCopies(const std::string& communicator, MPI_Comm group, std::unique_ptr<PeerSlots> slots);
  [[nodiscard]] Lane& lane(Kind kind, const Start& start) {
    return lanes_.at((start.capture != 0 ? kKinds : 0) + static_cast<std::size_t>(kind));
  }
  [[nodiscard]] std::shared_ptr<const PeerMemory> holder_of(CView view) const;
  /// Calls work(m) for every other member, the one after this one first, so that no member gets all
  /// messages at once.
  template <class Work>
  void each_other(Work&& work) const {
    for (int i = 1; i < slots_->size(); ++i) work((slots_->rank() + i) % slots_->size());
  }
  /// Sends a message to every other member and lets the receiving stream wait for theirs. Returns
  /// the slot.
  int exchange(Lane& lane, const Start& start, const Message& message);
  /// The receiving stream has read the slot.
  void release(Lane& lane, const Start& start, int slot);
  /// out = the terms of the slot and `own`, which may be null.
  void add(const Lane& lane, int slot, DType dtype, const std::byte* own, std::byte* out,
           std::size_t bytes);
  /// Bytes of each member's part, and which of them a call is about.
  struct Piece {
    std::size_t part = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] Piece piece_of(CView full, Dim begin, Dim count) const;
  cudaStream_t reduce(const Start& start, CView full, View shard, const Piece& piece,
                      bool with_own);
  /// Sends `own`, which are the piece's bytes of this member's part of `full`, to all others.
  cudaStream_t gather(const Start& start, View full, const std::byte* own, const Piece& piece);

  std::string communicator_;
  MPI_Comm group_;  ///< of the communicator that owns this
  std::unique_ptr<PeerSlots> slots_;
  std::vector<std::weak_ptr<PeerMemory>> shared_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  cudaEvent_t added_ = nullptr;
  std::array<Lane, kLanes> lanes_{};
};

}  // namespace hyperslab::comm
