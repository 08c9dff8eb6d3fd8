// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <string>
#include <vector>

namespace hyperslab::comm {

/// Device memory of each member of a group that all the others map (CUDA IPC).
class PeerMemory {
 public:
  /// Collective over `group`, which must outlive it: `memory` of each member, the GPU's of this
  /// process. Maps nothing, alike on all members, if sizes differ, if GPUs are not of one host or
  /// no NVLink connects them, or if the driver refuses; then is_mapped() is false.
  PeerMemory(MPI_Comm group, const std::string& communicator, void* memory, std::size_t bytes);
  /// Before any member frees its memory: collective.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  PeerMemory(PeerMemory&&) = delete;
  PeerMemory& operator=(PeerMemory&&) = delete;

  [[nodiscard]] bool is_mapped() const { return !starts_.empty(); }
  [[nodiscard]] bool holds(const void* address, std::size_t bytes) const;
  /// Where this member maps what lies there on `member` as `address`, which it holds, on this one.
  [[nodiscard]] std::byte* at(int member, const void* address) const;
  /// Where this member maps the memory of `member`.
  [[nodiscard]] std::byte* start(int member) const {
    return starts_[static_cast<std::size_t>(member)];
  }

 private:
  MPI_Comm group_;
  std::string communicator_;
  int rank_;
  std::size_t bytes_;
  std::vector<std::byte*> starts_;  ///< by member; empty if not mapped
  std::vector<void*> mapped_;       ///< what is to be closed
};

}  // namespace hyperslab::comm
