// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "nccl_check.hpp"
#include "peer_sums.hpp"
#include "peer_vectors.cuh"

namespace hyperslab::comm {
namespace {

constexpr int kThreads = 512;
constexpr int kMostBlocks = 16;
constexpr int kSlots = 2;
constexpr int kLanes = 2;  // one of eager calls, one of calls in graphs
constexpr int kVectorBytes = 16;

/// Message counts of one block of a lane's kernels, which moves a part of each message, on a cache
/// line of their own.
struct alignas(128) Mail {
  std::uint32_t received;  ///< messages, as the other member counts those that it sent
  std::uint32_t sent;      ///< this member's own count
};
struct Lane {
  alignas(128) std::byte slots[kSlots][PeerSums::kMostBytes];  ///< messages of the other member
  Mail mail[kMostBlocks];
};

/// All GPUs that see the value see the block's writes before its last barrier, too.
__device__ void publish(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ std::uint32_t seen(const std::uint32_t* flag) {
  std::uint32_t value = 0;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

/// `buffer`: of Units, which are elements or vectors of them. Every block takes the same bytes of
/// the message on both members, whatever their units are.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    peer_sum_kernel(Unit* buffer, int bytes, Lane* mine, Lane* theirs) {
  __shared__ std::uint32_t shared_turn;
  Mail& mail = mine->mail[blockIdx.x];
  if (threadIdx.x == 0) shared_turn = mail.sent + 1;
  __syncthreads();
  const std::uint32_t turn = shared_turn;
  const int slot = static_cast<int>(turn % kSlots);
  auto* const sent = reinterpret_cast<Unit*>(theirs->slots[slot]);
  const auto* const received = reinterpret_cast<const Unit*>(mine->slots[slot]);
  const int vectors = (bytes + kVectorBytes - 1) / kVectorBytes;
  const int of_block = (vectors + kMostBlocks - 1) / kMostBlocks * kVectorBytes;
  const int first = static_cast<int>(blockIdx.x) * of_block;
  const int begin = first / static_cast<int>(sizeof(Unit)) + static_cast<int>(threadIdx.x);
  const int end = min(first + of_block, bytes) / static_cast<int>(sizeof(Unit));
  for (int i = begin; i < end; i += kThreads) sent[i] = buffer[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    publish(&theirs->mail[blockIdx.x].received, turn);
    mail.sent = turn;
    // The other member may be one message ahead, in the other slot.
    while (static_cast<std::int32_t>(seen(&mail.received) - turn) < 0) {
    }
  }
  __syncthreads();
  // Past L1, which may hold older values.
  for (int i = begin; i < end; i += kThreads)
    buffer[i] = sum_of(buffer[i], load_past_l1(received + i));
}

template <class Unit>
cudaError_t launch(cudaStream_t stream, View buffer, Lane* mine, Lane* theirs) {
  // All blocks take part in every message, so that their counts agree.
  peer_sum_kernel<Unit><<<kMostBlocks, kThreads, 0, stream>>>(
      static_cast<Unit*>(buffer.raw()), static_cast<int>(buffer.bytes()), mine, theirs);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_of(cudaStream_t stream, View buffer, Lane* mine, Lane* theirs) {
  const bool vectors = buffer.bytes() % kVectorBytes == 0 &&
                       reinterpret_cast<std::uintptr_t>(buffer.raw()) % kVectorBytes == 0;
  return vectors ? launch<Vector<T>>(stream, buffer, mine, theirs)
                 : launch<T>(stream, buffer, mine, theirs);
}

}  // namespace

std::unique_ptr<PeerSums> PeerSums::make(MPI_Comm group, const std::string& communicator) {
  auto sums = std::unique_ptr<PeerSums>(new PeerSums(group, communicator));
  return sums->mapped_->is_mapped() ? std::move(sums) : nullptr;
}

PeerSums::PeerSums(MPI_Comm group, const std::string& communicator)
    : memory_(Device::cuda, kLanes * sizeof(Lane)) {
  HS_COMM_CUDA(communicator, cudaMemset(memory_.data(), 0, memory_.bytes()));
  HS_COMM_CUDA(communicator, cudaDeviceSynchronize());  // before the other member writes there
  mapped_ = std::make_unique<PeerMemory>(group, communicator, memory_.data(), memory_.bytes());
}

bool PeerSums::takes(CView buffer) {
  const bool adds =
      buffer.dtype() == DType::f32 || buffer.dtype() == DType::bf16 || buffer.dtype() == DType::f16;
  return adds && buffer.bytes() > 0 && buffer.bytes() <= kMostBytes;
}

cudaError_t PeerSums::all_reduce(cudaStream_t stream, View buffer, bool captured) {
  Lane* const mine = static_cast<Lane*>(memory_.data()) + (captured ? 1 : 0);
  auto* const theirs = reinterpret_cast<Lane*>(mapped_->there(mine));
  switch (buffer.dtype()) {
    case DType::bf16: return launch_of<__nv_bfloat16>(stream, buffer, mine, theirs);
    case DType::f16: return launch_of<__half>(stream, buffer, mine, theirs);
    default: return launch_of<float>(stream, buffer, mine, theirs);
  }
}

}  // namespace hyperslab::comm
