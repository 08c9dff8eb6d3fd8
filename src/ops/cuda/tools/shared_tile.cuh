// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit elements in shared memory: how they come and how warps read them.
#pragma once

#include <cstdint>

namespace hyperslab::ops::cuda {

/// kRows rows of kWidth 16-bit elements in shared memory, in chunks of 16 bytes that are permuted
/// within groups of eight so that eight rows of a column of chunks lie in different banks.
template <int kWidth, int kRows = 64>
struct SharedTile {
  static constexpr int kBytes = kRows * kWidth * 2;
  std::uint32_t base;
  __device__ explicit SharedTile(unsigned char* memory)
      : base(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))) {}
  [[nodiscard]] __device__ std::uint32_t at(int row, int chunk) const {
    return base + static_cast<std::uint32_t>(row * kWidth * 2 + (chunk ^ (row & 7)) * 16);
  }
};

/// Starts to copy 16 bytes to the address in shared memory; zeros if they are not there. `from` is
/// an address that may be read.
__device__ inline void load_chunk(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void commit_loads() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the newest kPending groups of loads of this thread have ended.
template <int kPending>
__device__ void wait_for_loads() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t address, std::uint32_t (&to)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(address)
               : "memory");
}

}  // namespace hyperslab::ops::cuda
