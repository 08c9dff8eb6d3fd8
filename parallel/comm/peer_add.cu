// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "peer_add.hpp"
#include "peer_vectors.cuh"

namespace hyperslab::comm {
namespace {

constexpr int kThreads = 512;
constexpr std::size_t kMostBlocks = 264;  // two on each multiprocessor of an H100 or H200

/// Units are elements or vectors of them.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    peer_add_kernel(Unit* sum, const Unit* received, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    sum[i] = sum_of(sum[i], load_past_l1(received + i));
  }
}

template <class Unit>
cudaError_t launch(cudaStream_t stream, void* sum, const void* received, std::size_t bytes) {
  const std::size_t count = bytes / sizeof(Unit);
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
  peer_add_kernel<Unit><<<blocks, kThreads, 0, stream>>>(static_cast<Unit*>(sum),
                                                         static_cast<const Unit*>(received), count);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_of(cudaStream_t stream, void* sum, const void* received, std::size_t bytes) {
  const auto bits =
      reinterpret_cast<std::uintptr_t>(sum) | reinterpret_cast<std::uintptr_t>(received) | bytes;
  return bits % sizeof(Vector<T>) == 0 ? launch<Vector<T>>(stream, sum, received, bytes)
                                       : launch<T>(stream, sum, received, bytes);
}

}  // namespace

cudaError_t add_received(cudaStream_t stream, DType dtype, void* sum, const void* received,
                         std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  switch (dtype) {
    case DType::f32: return launch_of<float>(stream, sum, received, bytes);
    case DType::bf16: return launch_of<__nv_bfloat16>(stream, sum, received, bytes);
    case DType::f16: return launch_of<__half>(stream, sum, received, bytes);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace hyperslab::comm
