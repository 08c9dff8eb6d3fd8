// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>

#include <cstddef>
#include <string>

namespace hyperslab::comm {

/// Device memory of each of two members of a group that the other one maps (CUDA IPC).
class PeerMemory {
 public:
  /// Collective over `group`, which must outlive it: `memory` of each member, the GPU's of this
  /// process. Maps nothing, alike on both members, if sizes differ, if the GPUs are not of one host
  /// or no NVLink connects them, or if the driver refuses: refusal() says why.
  PeerMemory(MPI_Comm group, const std::string& communicator, void* memory, std::size_t bytes);
  /// Before either member frees its memory: collective.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  PeerMemory(PeerMemory&&) = delete;
  PeerMemory& operator=(PeerMemory&&) = delete;

  [[nodiscard]] bool is_mapped() const { return theirs_ != nullptr; }
  /// Why nothing is mapped, the same on both members; empty if the memory is.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  [[nodiscard]] bool is_on_one_host() const { return one_host_; }
  [[nodiscard]] bool holds(const void* address, std::size_t bytes) const;
  /// The address here of the other member's counterpart of `address`, which must lie in the memory.
  [[nodiscard]] std::byte* there(const void* address) const {
    return theirs_ + (static_cast<const std::byte*>(address) - own_);
  }

 private:
  MPI_Comm group_;
  std::string communicator_;
  std::byte* own_;
  std::size_t bytes_;
  bool one_host_;
  std::string refusal_;
  std::byte* theirs_ = nullptr;  ///< null if not mapped
  void* mapped_ = nullptr;       ///< address that cudaIpcCloseMemHandle takes
};

}  // namespace hyperslab::comm
