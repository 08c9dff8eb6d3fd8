// SPDX-License-Identifier: Apache-2.0
#include "peer_memory.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "hyperslab/core/cuda_check.hpp"
#include "mpi_check.hpp"
#include "nccl_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kAlignment = 512;
constexpr std::size_t kBusIdBytes = 16;

/// What a member tells the others.
struct Offer {
  std::array<char, kBusIdBytes> bus_id;
  cudaIpcMemHandle_t memory;
};

/// Every place has a flag of each kind at each end.
std::size_t flag_bytes(int slots) {
  const std::size_t flags = std::size_t{2} * static_cast<std::size_t>(slots) *
                            static_cast<std::size_t>(PeerMemory::kMostMembers);
  return (flags * sizeof(std::uint32_t) + kAlignment - 1) / kAlignment * kAlignment;
}

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

/// GPUs that NVLink connects carry out each other's atomic operations.
bool is_linked(const Offer& other) {
  int mine = 0;
  int device = 0;
  int linked = 0;
  const bool found = cudaGetDevice(&mine) == cudaSuccess &&
                     cudaDeviceGetByPCIBusId(&device, other.bus_id.data()) == cudaSuccess &&
                     cudaDeviceGetP2PAttribute(&linked, cudaDevP2PAttrNativeAtomicSupported, mine,
                                               device) == cudaSuccess;
  (void)cudaGetLastError();  // not to be seen by the next check
  return found && linked != 0;
}

}  // namespace

std::optional<PeerMemory> PeerMemory::map(MPI_Comm group, const std::string& communicator,
                                          int slots, std::size_t bytes) {
  PeerMemory memory;
  memory.communicator_ = communicator;
  memory.rank_ = rank_in(group, communicator);
  const int size = size_of_group(group, communicator);
  const bool fits = bytes > 0 && size >= 2 && size <= kMostMembers;
  if (!all_agree(group, communicator, fits) || !is_one_host(group, communicator)) {
    return std::nullopt;
  }
  memory.slots_ = slots;
  memory.place_bytes_ = bytes / static_cast<std::size_t>(size - 1) / kAlignment * kAlignment;
  const std::size_t places = static_cast<std::size_t>(slots) * static_cast<std::size_t>(size - 1);
  const std::size_t all_bytes = flag_bytes(slots) + places * memory.place_bytes_;

  memory.bases_.resize(static_cast<std::size_t>(size));
  std::byte*& own = memory.bases_[static_cast<std::size_t>(memory.rank_)];
  Offer offer = {};
  int device = 0;
  bool offers = cudaGetDevice(&device) == cudaSuccess &&
                cudaDeviceGetPCIBusId(offer.bus_id.data(), kBusIdBytes, device) == cudaSuccess &&
                cudaMalloc(reinterpret_cast<void**>(&own), all_bytes) == cudaSuccess;
  if (offers) {
    std::vector<std::uint32_t> flags(flag_bytes(slots) / sizeof(std::uint32_t), 0);
    std::fill_n(flags.begin(), flags.size() / 2, 1U);  // every place is free
    HS_COMM_CUDA(communicator,
                 cudaMemcpy(own, flags.data(), flag_bytes(slots), cudaMemcpyHostToDevice));
    offers = cudaIpcGetMemHandle(&offer.memory, own) == cudaSuccess;
  }
  std::vector<Offer> all(static_cast<std::size_t>(size));
  HS_MPI(communicator,
         MPI_Allgather(&offer, sizeof offer, MPI_BYTE, all.data(), sizeof offer, MPI_BYTE, group));
  memory.group_ = group;
  bool maps = all_agree(group, communicator, offers);
  for (int member = 0; member < size && maps; ++member) {
    if (member == memory.rank_) continue;
    const Offer& theirs = all[static_cast<std::size_t>(member)];
    void* mapped = nullptr;
    maps = is_linked(theirs) && cudaIpcOpenMemHandle(&mapped, theirs.memory,
                                                     cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    memory.bases_[static_cast<std::size_t>(member)] = static_cast<std::byte*>(mapped);
  }
  (void)cudaGetLastError();
  if (!all_agree(group, communicator, maps)) return std::nullopt;
  return memory;
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : group_(std::exchange(other.group_, MPI_COMM_NULL)),
      communicator_(std::move(other.communicator_)),
      rank_(other.rank_),
      slots_(other.slots_),
      place_bytes_(other.place_bytes_),
      bases_(std::exchange(other.bases_, {})) {}

PeerMemory::~PeerMemory() { close(); }

/// No member may free what another one still maps.
void PeerMemory::close() noexcept {
  if (group_ == MPI_COMM_NULL) {
    for (std::byte* base : bases_) {
      log_if_cuda_failed(cudaFree(base), communicator_, "cudaFree");  // before anyone mapped it
    }
    return;
  }
  if (!may_free_mpi_handles()) return;  // with the process
  for (int member = 0; member < size(); ++member) {
    std::byte* base = bases_[static_cast<std::size_t>(member)];
    if (member == rank_ || base == nullptr) continue;
    log_if_cuda_failed(cudaIpcCloseMemHandle(base), communicator_, "cudaIpcCloseMemHandle");
  }
  (void)MPI_Barrier(group_);
  log_if_cuda_failed(cudaFree(bases_[static_cast<std::size_t>(rank_)]), communicator_, "cudaFree");
}

std::byte* PeerMemory::place(int slot, int from, int to) const {
  const int index = slot * (size() - 1) + (from < to ? from : from - 1);
  return bases_[static_cast<std::size_t>(to)] + flag_bytes(slots_) +
         static_cast<std::size_t>(index) * place_bytes_;
}

std::uint32_t* PeerMemory::free(int slot, int from, int to) const {
  return reinterpret_cast<std::uint32_t*>(bases_[static_cast<std::size_t>(from)]) +
         slot * kMostMembers + to;
}

std::uint32_t* PeerMemory::full(int slot, int from, int to) const {
  return reinterpret_cast<std::uint32_t*>(bases_[static_cast<std::size_t>(to)]) +
         (slots_ + slot) * kMostMembers + from;
}

}  // namespace hyperslab::comm
