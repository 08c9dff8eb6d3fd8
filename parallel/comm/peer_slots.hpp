// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "hyperslab/core/arena.hpp"
#include "peer_memory.hpp"

namespace hyperslab::comm {

/// Slots for messages in memory that the members of a group map: two flags for each pair of
/// members, and, for the first of the slots, a place for the bytes.
class PeerSlots {
 public:
  static constexpr int kMostMembers = 8;

  /// Collective. `with_places` of the `slots` have places, of `bytes` for all senders together.
  PeerSlots(MPI_Comm group, const std::string& communicator, int slots, int with_places,
            std::size_t bytes);

  [[nodiscard]] bool is_mapped() const { return memory_->is_mapped(); }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::size_t place_bytes() const { return place_bytes_; }

  /// Where member `from` puts its message for member `to`.
  [[nodiscard]] std::byte* place(int slot, int from, int to) const;
  /// In memory of `to`: 1 while there is a message from `from` that was not read.
  [[nodiscard]] std::uint32_t* full(int slot, int from, int to) const;
  /// In memory of `from`: 1 while it may send `to` a message. At first 1 for slots with places.
  [[nodiscard]] std::uint32_t* free(int slot, int from, int to) const;

 private:
  [[nodiscard]] std::size_t flag_bytes() const;
  int rank_;
  int size_;
  int slots_;
  std::size_t place_bytes_;
  Buffer own_;
  std::unique_ptr<PeerMemory> memory_;  ///< goes before own_
};

}  // namespace hyperslab::comm
