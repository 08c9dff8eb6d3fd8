// SPDX-License-Identifier: Apache-2.0
#include "peer_memory.hpp"

#include <cuda.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/driver_function.hpp"
#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kBusIdBytes = 16;

/// The message of a member to the other one.
struct Offer {
  std::array<char, kBusIdBytes> bus_id;
  cudaIpcMemHandle_t allocation;
  std::size_t offset;  ///< begin of the memory in its allocation
  std::size_t bytes;
};

// A reason says why something failed; an empty one, that it did not.

/// The first member's reason, else the second's, on both.
std::string agreed(MPI_Comm group, const std::string& communicator, const std::string& mine) {
  using Reason = std::array<char, 256>;
  Reason text{};
  mine.copy(text.data(), text.size() - 1);
  std::array<Reason, 2> all{};
  HS_MPI(communicator, MPI_Allgather(text.data(), sizeof text, MPI_BYTE, all.data(), sizeof text,
                                     MPI_BYTE, group));
  return all[0][0] != '\0' ? all[0].data() : all[1].data();
}

bool are_on_one_host(MPI_Comm group, const std::string& communicator) {
  MPI_Comm host = MPI_COMM_NULL;
  HS_MPI(communicator, MPI_Comm_split_type(group, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
  const bool all = size_of_group(host, communicator) == size_of_group(group, communicator);
  HS_MPI(communicator, MPI_Comm_free(&host));
  return agreed(group, communicator, all ? "" : "apart").empty();
}

/// The reason that a call gives. CUDA's last error is cleared, so that the next check does not see
/// it.
std::string reason_of(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return fmt::format("{} failed ({})", call, cudaGetErrorName(status));
}

/// Makes the offer by which the other member maps `memory`. Returns a reason if it fails.
std::string make_offer(const std::string& communicator, void* memory, std::size_t bytes,
                       Offer& offer) {
  static const auto range = driver_function<decltype(&cuMemGetAddressRange)>(
      "communicator " + communicator, "cuMemGetAddressRange");
  offer.bytes = bytes;
  if (bytes == 0) return "there is no memory to share";
  CUdeviceptr start = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (range(&start, nullptr, address) != CUDA_SUCCESS) return "cuMemGetAddressRange failed";
  offer.offset = address - start;
  int device = 0;
  std::string reason = reason_of(cudaGetDevice(&device), "cudaGetDevice");
  if (reason.empty()) {
    reason = reason_of(cudaDeviceGetPCIBusId(offer.bus_id.data(), kBusIdBytes, device),
                       "cudaDeviceGetPCIBusId");
  }
  if (reason.empty()) {
    reason = reason_of(cudaIpcGetMemHandle(&offer.allocation, memory), "cudaIpcGetMemHandle");
  }
  return reason;
}

/// Checks that NVLink connects the GPUs: they carry out each other's atomic operations. Returns a
/// reason if it does not.
std::string find_link(const Offer& mine, const Offer& theirs) {
  int device = 0;
  int other = 0;
  int linked = 0;
  if (cudaDeviceGetByPCIBusId(&other, theirs.bus_id.data()) != cudaSuccess) {
    (void)cudaGetLastError();
    return fmt::format(
        "the rank of GPU {} does not see GPU {} (CUDA_VISIBLE_DEVICES, or a launcher that shows "
        "each rank one GPU)",
        mine.bus_id.data(), theirs.bus_id.data());
  }
  std::string reason = reason_of(cudaGetDevice(&device), "cudaGetDevice");
  if (reason.empty()) {
    reason = reason_of(
        cudaDeviceGetP2PAttribute(&linked, cudaDevP2PAttrNativeAtomicSupported, device, other),
        "cudaDeviceGetP2PAttribute");
  }
  if (!reason.empty() || linked != 0) return reason;
  return fmt::format("no NVLink connects GPUs {} and {}", mine.bus_id.data(), theirs.bus_id.data());
}

/// Maps the memory that the other member offers. Returns a reason, then `mapped` is null.
std::string map(const Offer& mine, const Offer& theirs, void*& mapped) {
  if (theirs.bytes != mine.bytes) {
    return fmt::format("one has {} bytes, the other {}", mine.bytes, theirs.bytes);
  }
  std::string reason = find_link(mine, theirs);
  if (!reason.empty()) return reason;
  reason =
      reason_of(cudaIpcOpenMemHandle(&mapped, theirs.allocation, cudaIpcMemLazyEnablePeerAccess),
                "cudaIpcOpenMemHandle");
  if (!reason.empty()) mapped = nullptr;
  return reason;
}

}  // namespace

PeerMemory::PeerMemory(MPI_Comm group, const std::string& communicator, void* memory,
                       std::size_t bytes)
    : group_(group),
      communicator_(communicator),
      own_(static_cast<std::byte*>(memory)),
      bytes_(bytes),
      one_host_(are_on_one_host(group, communicator)) {
  if (!one_host_) {
    refusal_ = "the ranks are on two hosts";
    return;
  }
  Offer mine = {};
  refusal_ = agreed(group, communicator, make_offer(communicator, memory, bytes, mine));
  if (!refusal_.empty()) return;
  std::array<Offer, 2> offered;
  HS_MPI(communicator,
         MPI_Allgather(&mine, sizeof mine, MPI_BYTE, offered.data(), sizeof mine, MPI_BYTE, group));
  const Offer& theirs = offered.at(rank_in(group, communicator) == 0 ? 1 : 0);
  refusal_ = agreed(group, communicator, map(mine, theirs, mapped_));
  if (refusal_.empty()) theirs_ = static_cast<std::byte*>(mapped_) + theirs.offset;
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
