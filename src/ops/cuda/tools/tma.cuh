// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

// Copies by Hopper's copy engine (TMA) and the barriers in shared memory that show when bytes have
// come (PTX ISA, cp.async.bulk.tensor and mbarrier). The instructions need compute capability 9.0;
// elsewhere a kernel that uses them traps.

namespace hyperslab::ops::cuda::tma {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HYPERSLAB_TMA(...) __VA_ARGS__
#else
#define HYPERSLAB_TMA(...) __trap()
#endif

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void init(std::uint64_t* barrier, unsigned arrivals) {
  HYPERSLAB_TMA(asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
      : "memory"));
}
/// One thread, after init() and before a barrier of the block.
__device__ inline void publish_init() {
  HYPERSLAB_TMA(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"));
}
__device__ inline void arrive(std::uint64_t* barrier) {
  HYPERSLAB_TMA(
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                   : "memory"));
}
/// Arrives at the barrier that lies there in a block of the cluster. Orders no memory: for whoever
/// has read memory that the copy engine may write next.
__device__ inline void arrive_in(std::uint64_t* barrier, unsigned block) {
  HYPERSLAB_TMA(
      asm volatile("{\n"
                   ".reg .b32 there;\n"
                   "mapa.shared::cluster.u32 there, %0, %1;\n"
                   "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                   "}" ::"r"(shared_address(barrier)),
                   "r"(block)
                   : "memory"));
}
/// Arrives, and lets the phase end only after so many bytes have come.
__device__ inline void arrive_for(std::uint64_t* barrier, unsigned bytes) {
  HYPERSLAB_TMA(asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory"));
}
/// Until the phase of that parity has ended.
__device__ inline void wait(std::uint64_t* barrier, unsigned parity) {
  HYPERSLAB_TMA(
      asm volatile("{\n"
                   ".reg .pred ended;\n"
                   "AGAIN:\n"
                   "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                   "@!ended bra AGAIN;\n"
                   "}" ::"r"(shared_address(barrier)),
                   "r"(parity)
                   : "memory"));
}
/// The policy of a copy whose bytes are read once: they leave the L2 cache first.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy = 0;
  HYPERSLAB_TMA(asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"
                             : "=l"(policy)));
  return policy;
}
/// Bytes that follow one another: both addresses and the count are multiples of 16.
__device__ inline void copy(void* to, const void* from, unsigned bytes, std::uint64_t* barrier,
                            std::uint64_t policy) {
  HYPERSLAB_TMA(asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory"));
}
/// copy() without a cache policy.
__device__ inline void copy(void* to, const void* from, unsigned bytes, std::uint64_t* barrier) {
  HYPERSLAB_TMA(
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                   "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                   "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                   : "memory"));
}
/// The box whose first element is in `column` of `row`; zeros beyond the matrix.
__device__ inline void copy(void* to, const CUtensorMap& from, int column, int row,
                            std::uint64_t* barrier, std::uint64_t policy) {
  HYPERSLAB_TMA(asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&from), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory"));
}
/// The box of four dimensions whose first element is at `at`, the innermost dimension first.
__device__ inline void copy(std::uint32_t to, const CUtensorMap& from, const int (&at)[4],
                            std::uint64_t* barrier) {
  HYPERSLAB_TMA(asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&from), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(shared_address(barrier))
      : "memory"));
}

/// Makes this thread's writes to shared memory visible to copies out of it that another thread
/// starts after both met at a barrier.
__device__ inline void publish_writes() {
  HYPERSLAB_TMA(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}
/// Bytes out of shared memory: both addresses and the count are multiples of 16. The copies that a
/// thread started before commit_copies_out() are one group.
__device__ inline void copy_out(void* to, const void* from, unsigned bytes) {
  HYPERSLAB_TMA(asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                                 __cvta_generic_to_global(to)),
                             "r"(shared_address(from)), "r"(bytes)
                             : "memory"));
}
__device__ inline void commit_copies_out() {
  HYPERSLAB_TMA(asm volatile("cp.async.bulk.commit_group;" ::: "memory"));
}
/// Until all but this thread's newest kGroups groups have read shared memory, which may be written
/// again.
template <int kGroups>
__device__ void wait_for_reads() {
  HYPERSLAB_TMA(asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory"));
}

/// Which block of its cluster this is.
__device__ inline unsigned block_in_cluster() {
  unsigned block = 0;
  HYPERSLAB_TMA(asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block)));
  return block;
}
/// A barrier of all threads of the cluster, which warps reach as a whole.
__device__ inline void sync_cluster() {
  HYPERSLAB_TMA(
      asm volatile("barrier.cluster.arrive.aligned;\n"
                   "barrier.cluster.wait.aligned;" ::
                       : "memory"));
}
/// Writes four matrices of 8 x 8 16-bit elements to shared memory: lanes 8 q to 8 q + 7 name the
/// rows of the q-th, and lane 4 g + t has the elements 2 t and 2 t + 1 of each one's row g.
__device__ inline void store_matrices(std::uint32_t to, const std::uint32_t (&matrices)[4]) {
  HYPERSLAB_TMA(
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                   "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                   : "memory"));
}
/// The box whose first element is in `column` of `row`, into the shared memory of this block.
__device__ inline void copy(void* to, const CUtensorMap& from, int column, int row,
                            std::uint64_t* barrier) {
  HYPERSLAB_TMA(
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                   "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                   "l"(&from), "r"(column), "r"(row), "r"(shared_address(barrier))
                   : "memory"));
}
/// Copies a box to the first two blocks of the cluster, at the same offset; the barrier of each at
/// this offset counts the bytes that it gets.
__device__ inline void copy_to_pair(void* to, const CUtensorMap& from, int column, int row,
                                    std::uint64_t* barrier) {
  HYPERSLAB_TMA(
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                   ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                   "l"(&from), "r"(column), "r"(row), "r"(shared_address(barrier)),
                   "h"(static_cast<std::uint16_t>(3))
                   : "memory"));
}

#undef HYPERSLAB_TMA

}  // namespace hyperslab::ops::cuda::tma
