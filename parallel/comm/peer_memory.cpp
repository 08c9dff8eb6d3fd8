// SPDX-License-Identifier: Apache-2.0
#include "peer_memory.hpp"

#include <cuda.h>

#include <array>
#include <cstdint>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/driver_function.hpp"
#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kBusIdBytes = 16;

/// What a member tells the other one.
struct Offer {
  std::array<char, kBusIdBytes> bus_id;
  cudaIpcMemHandle_t allocation;
  std::size_t offset;  ///< of the memory in its allocation
  std::size_t bytes;
};

bool all_agree(MPI_Comm group, const std::string& communicator, bool mine) {
  int all = static_cast<int>(mine);
  HS_MPI(communicator, MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, group));
  return all != 0;
}

bool is_one_host(MPI_Comm group, const std::string& communicator) {
  MPI_Comm host = MPI_COMM_NULL;
  HS_MPI(communicator, MPI_Comm_split_type(group, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
  const bool all = size_of_group(host, communicator) == size_of_group(group, communicator);
  HS_MPI(communicator, MPI_Comm_free(&host));
  return all_agree(group, communicator, all);
}

bool make_offer(const std::string& communicator, void* memory, std::size_t bytes, Offer& offer) {
  static const auto range = driver_function<decltype(&cuMemGetAddressRange)>(
      "communicator " + communicator, "cuMemGetAddressRange");
  CUdeviceptr start = 0;
  int device = 0;
  offer.bytes = bytes;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (range(&start, nullptr, address) != CUDA_SUCCESS) return false;
  offer.offset = address - start;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetPCIBusId(offer.bus_id.data(), kBusIdBytes, device) == cudaSuccess &&
         cudaIpcGetMemHandle(&offer.allocation, memory) == cudaSuccess;
}

/// GPUs that NVLink connects carry out each other's atomic operations.
bool is_linked(const Offer& other) {
  int mine = 0;
  int device = 0;
  int linked = 0;
  return cudaGetDevice(&mine) == cudaSuccess &&
         cudaDeviceGetByPCIBusId(&device, other.bus_id.data()) == cudaSuccess &&
         cudaDeviceGetP2PAttribute(&linked, cudaDevP2PAttrNativeAtomicSupported, mine, device) ==
             cudaSuccess &&
         linked != 0;
}

}  // namespace

PeerMemory::PeerMemory(MPI_Comm group, const std::string& communicator, void* memory,
                       std::size_t bytes)
    : group_(group),
      communicator_(communicator),
      own_(static_cast<std::byte*>(memory)),
      bytes_(bytes) {
  if (!is_one_host(group, communicator)) return;
  Offer offer = {};
  const bool offers = bytes > 0 && make_offer(communicator, memory, bytes, offer);
  (void)cudaGetLastError();  // not to be seen by the next check
  std::array<Offer, 2> offered;
  HS_MPI(communicator, MPI_Allgather(&offer, sizeof offer, MPI_BYTE, offered.data(), sizeof offer,
                                     MPI_BYTE, group));
  if (!all_agree(group, communicator, offers)) return;
  const Offer& theirs = offered.at(rank_in(group, communicator) == 0 ? 1 : 0);
  const bool maps = theirs.bytes == bytes && is_linked(theirs) &&
                    cudaIpcOpenMemHandle(&mapped_, theirs.allocation,
                                         cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
  (void)cudaGetLastError();
  if (!maps) mapped_ = nullptr;
  if (all_agree(group, communicator, maps)) {
    theirs_ = static_cast<std::byte*>(mapped_) + theirs.offset;
  }
}

PeerMemory::~PeerMemory() {
  if (!may_free_mpi_handles()) return;  // with the process
  const std::string who = "communicator " + communicator_;
  log_if_cuda_failed(cudaDeviceSynchronize(), who, "cudaDeviceSynchronize");
  if (mapped_ != nullptr) {
    log_if_cuda_failed(cudaIpcCloseMemHandle(mapped_), who, "cudaIpcCloseMemHandle");
  }
  (void)MPI_Barrier(group_);
}

bool PeerMemory::holds(const void* address, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(own_);
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  return is_mapped() && first >= begin && first + bytes <= begin + bytes_;
}

}  // namespace hyperslab::comm
