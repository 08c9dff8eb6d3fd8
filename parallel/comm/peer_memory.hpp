// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyperslab::comm {

/// Device memory of each member of a group that all the others map (CUDA IPC): slots, in each of
/// which every other member has a place of its own, and two flags for each place.
class PeerMemory {
 public:
  static constexpr int kMostMembers = 8;

  /// Collective over `group`; nothing, alike on all members, if they cannot map each other.
  /// `bytes`: of a slot, for all places together.
  [[nodiscard]] static std::optional<PeerMemory> map(MPI_Comm group,
                                                     const std::string& communicator, int slots,
                                                     std::size_t bytes);
  /// Collective.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(bases_.size()); }
  /// Of one place.
  [[nodiscard]] std::size_t slot_bytes() const { return place_bytes_; }

  /// Where member `from` puts its message for member `to`.
  [[nodiscard]] std::byte* place(int slot, int from, int to) const;
  /// In memory of `to`: 1 while there is a message from `from` that was not read.
  [[nodiscard]] std::uint32_t* full(int slot, int from, int to) const;
  /// In memory of `from`: 1 while it may put a message for `to` there.
  [[nodiscard]] std::uint32_t* free(int slot, int from, int to) const;

 private:
  PeerMemory() = default;
  void close() noexcept;

  MPI_Comm group_ = MPI_COMM_NULL;  ///< of the communicator that owns this
  std::string communicator_;
  int rank_ = 0;
  int slots_ = 0;
  std::size_t place_bytes_ = 0;
  std::vector<std::byte*> bases_;  ///< by member, as this one maps them; empty once moved from
};

}  // namespace hyperslab::comm
