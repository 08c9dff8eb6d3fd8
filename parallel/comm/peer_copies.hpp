// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/arena.hpp"
#include "peer_memory.hpp"

namespace hyperslab::comm {

/// Collectives of two members right to where they belong, in memory that their GPUs map into each
/// other: copy engines move the bytes and streams wait for flags. A kernel beside them keeps its
/// multiprocessors; NCCL's blocks would wait until it leaves them some, and the next
/// products for NCCL's blocks. All-reduces are faster by NCCL if nothing computes beside them.
/// Among more members copies gained nothing: four H100 took 1.2 times as long as with NCCL
/// (analysis/results/tensor-h100.txt).
///
/// Each member sends the other one message at a time, in the same order on both; a message goes
/// once the other has come to the call too, so that the memory may be written. Graphs have a lane
/// of their own, so that eager calls may be in progress beside them. In a lane, a call waits for
/// no call of the other member that comes later than its own counterpart there.
class PeerCopies {
 public:
  /// yes, for a data group: takes_sum() may say yes, and the first share() takes memory for the
  /// other member's terms of sums.
  enum class AllReduces : std::uint8_t { no, yes };
  /// Collective over `group`. Null, alike on all members, unless there are two that can map each
  /// other's memory (see PeerMemory). Null, too, where HYPERSLAB_PEER_COPIES is 0 on a member, or
  /// is `tensor` and sums are asked for. Throws on all members if it is something else than 0, 1
  /// and tensor on one.
  [[nodiscard]] static std::unique_ptr<PeerCopies> make(MPI_Comm group,
                                                        const std::string& communicator,
                                                        AllReduces sums);
  /// Collective, after everything enqueued is done.
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;
  PeerCopies(PeerCopies&&) = delete;
  PeerCopies& operator=(PeerCopies&&) = delete;

  /// As in Communicator.
  [[nodiscard]] std::shared_ptr<void> share(const Arena& arena);
  [[nodiscard]] bool is_shared(CView view) const { return holder_of(view) != nullptr; }
  /// True if an all_gather into `full` is worth it; if not, it is NCCL's.
  [[nodiscard]] bool takes_gather(CView full) const;
  /// True if copies take a sum of `full` over both members, in eager calls: its slots have no
  /// lanes.
  [[nodiscard]] bool takes_sum(CView full) const;

  /// When a call begins and the capture that it is part of, 0 for none.
  struct Start {
    cudaEvent_t after = nullptr;
    unsigned long long capture = 0;
  };
  /// Returns a stream; work that is enqueued on it follows the operation.
  [[nodiscard]] cudaStream_t reduce_scatter_others(const Start& start, View full, View shard,
                                                   Piece piece);
  [[nodiscard]] cudaStream_t all_gather(const Start& start, CView shard, View full);
  [[nodiscard]] cudaStream_t all_gather_piece(const Start& start, View full, Piece piece);
  /// Sums a view that takes_sum() accepts; the shard of a reduce_scatter is this member's part of
  /// `full`.
  [[nodiscard]] cudaStream_t all_reduce(const Start& start, View full);
  [[nodiscard]] cudaStream_t reduce_scatter(const Start& start, View full);

 private:
  /// The flags of a slot, in the memory of the member that waits for it.
  struct Flags {
    std::uint32_t free;  ///< 1 while this member may send the other one a message
    std::uint32_t full;  ///< 1 once the other's message is there
  };
  static constexpr int kSlots = 4;  ///< messages of a lane that may be in progress
  static constexpr int kLanes = 2;  ///< one of eager calls, one of calls in graphs
  static constexpr std::size_t kFlagBytes = 256;
  static_assert(kLanes * kSlots * sizeof(Flags) <= kFlagBytes);
  static constexpr int kRooms = 2;  ///< rooms of messages that are to be added
  static constexpr std::size_t kRoomBytes = std::size_t{16} << 20;

  struct Slot {
    Flags* flags = nullptr;  ///< in memory of this member
    // Events of the newest message.
    cudaEvent_t freed = nullptr;     ///< this member may write to the other
    cudaEvent_t sent = nullptr;      ///< the message to the other was sent
    cudaEvent_t received = nullptr;  ///< this member has received its message
    unsigned long long capture = 0;
    bool used = false;
  };
  struct Lane {
    int next = 0;
    std::array<Slot, kSlots> slots{};
  };

  struct Room {
    std::byte* memory = nullptr;
    cudaEvent_t added = nullptr;  ///< once the last values there have been added
    bool used = false;
  };
  /// Bytes [begin, begin + bytes) of a view.
  struct Range {
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };

  PeerCopies(MPI_Comm group, const std::string& communicator, AllReduces sums);
  [[nodiscard]] cudaStream_t make_stream() const;
  void make_lanes();
  void make_rooms();
  /// A text that names the traffic left to NCCL if the arena is not shared.
  [[nodiscard]] std::string left_to_nccl(const Arena& arena) const;
  /// `moved`: the traffic that NCCL moves in place of this.
  [[nodiscard]] std::string refusal_text(std::string_view moved, const std::string& reason) const;
  /// True if the memory is mapped; if not, the first member logs why.
  [[nodiscard]] bool maps(const PeerMemory& memory, std::string_view moved) const;
  [[nodiscard]] std::shared_ptr<const PeerMemory> holder_of(CView view) const;
  /// Sends `from` to `to`, an address on the other member as this one maps it. Work on receives_,
  /// or after the event that is returned, finds the other's message.
  cudaEvent_t exchange(const Start& start, const void* from, std::size_t bytes, std::byte* to);
  enum class Gathered : std::uint8_t { no, yes };  ///< no: a member keeps its own part alone
  /// The first member's part of `full` has first_bytes.
  cudaStream_t sum_parts(const Start& start, View full, std::size_t first_bytes, Gathered gathered);
  template <class Pointer>
  [[nodiscard]] Pointer own_part(Pointer full, std::size_t part) const {
    return full + static_cast<std::size_t>(rank_) * part;
  }
  template <class Pointer>
  [[nodiscard]] Pointer other_part(Pointer full, std::size_t part) const {
    return full + static_cast<std::size_t>(1 - rank_) * part;
  }

  std::string communicator_;
  MPI_Comm group_;  ///< the group of the communicator that owns this
  int rank_;
  AllReduces sums_;
  Buffer memory_;                       ///< flags
  std::unique_ptr<PeerMemory> mapped_;  ///< maps memory_; ends before it
  Buffer memory_of_rooms_;
  std::unique_ptr<PeerMemory> mapped_rooms_;  ///< likewise
  std::vector<std::weak_ptr<PeerMemory>> shared_;
  cudaStream_t frees_ = nullptr;  ///< waits until the other may be written to
  cudaStream_t sends_ = nullptr;
  cudaStream_t receives_ = nullptr;
  cudaStream_t adds_ = nullptr;
  std::array<Lane, kLanes> lanes_{};
  std::vector<Room> rooms_;  ///< none without sums, or before share()
};

}  // namespace hyperslab::comm
