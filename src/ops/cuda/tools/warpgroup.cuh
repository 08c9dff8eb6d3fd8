// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup, four warps, on Hopper's tensor cores (PTX ISA, wgmma.mma_async). They
// read tiles out of shared memory on their own and run beside other instructions of the warps.
// Compiled for compute capability 9.0a; elsewhere a kernel that uses them traps.
//
// The assembler serializes products (its warnings C7510 to C7519) if registers that a later one
// reads are written while an earlier one runs: arithmetic comes first, then all products of a
// stage, then the wait for them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common.cuh"
#include "tma.cuh"

namespace hyperslab::ops::cuda::warpgroup {

inline constexpr int kThreads = 128;
inline constexpr int kRows = 64;      // rows of a product, and of a tile
inline constexpr int kStep = 16;      // columns that an instruction multiplies
inline constexpr int kSwizzled = 64;  // elements of 16 bits in a swizzled row of 128 bytes

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HYPERSLAB_WARPGROUP(...) __VA_ARGS__
#else
#define HYPERSLAB_WARPGROUP(...) __trap()
#endif

/// kRows rows of kWidth 16-bit elements in shared memory, at a multiple of 1,024 bytes: parts of 64
/// columns one after another, their rows swizzled as the copy engine leaves boxes with
/// CU_TENSOR_MAP_SWIZZLE_128B.
template <int kWidth>
struct Tile {
  static_assert(kWidth % kSwizzled == 0);
  static constexpr int kPartBytes = kRows * kSwizzled * 2;
  static constexpr int kBytes = kWidth / kSwizzled * kPartBytes;
  std::uint32_t base;

  /// In a cluster upper bits of a shared address name the block; descriptors hold offsets in this
  /// one.
  __device__ explicit Tile(const unsigned char* memory)
      : base(tma::shared_address(memory) & 0x3FFFFU) {}

  /// Columns [16 step, 16 step + 16) of all rows, as an operand whose rows are summed over columns.
  [[nodiscard]] __device__ std::uint64_t columns(int step) const {
    constexpr int kStepsOfPart = kSwizzled / kStep;
    return descriptor(step / kStepsOfPart * kPartBytes + step % kStepsOfPart * kStep * 2, 16);
  }
  /// Rows [16 step, 16 step + 16) of all columns, as an operand that is summed over rows.
  [[nodiscard]] __device__ std::uint64_t rows(int step) const {
    return descriptor(step * kStep * kSwizzled * 2, kPartBytes);
  }

 private:
  /// The descriptor of the matrix that begins `offset` bytes into the tile. Eight rows of 128 bytes
  /// are 1,024 bytes apart from the next eight; `leading` bytes lie between parts. All in units of
  /// 16 bytes.
  [[nodiscard]] __device__ std::uint64_t descriptor(int offset, int leading) const {
    constexpr std::uint32_t kSwizzle128 = 1U << 30U;
    const std::uint32_t low = (base >> 4U) + static_cast<std::uint32_t>(offset / 16) +
                              (static_cast<std::uint32_t>(leading / 16) << 16U);
    return static_cast<std::uint64_t>(kSwizzle128 | 8 * 128 / 16) << 32U | low;
  }
};

/// A thread that wrote operands of the next products to shared memory, before a barrier of the
/// block.
__device__ inline void publish_writes() {
  HYPERSLAB_WARPGROUP(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}
/// Before the first product of a group reads registers that other instructions wrote.
__device__ inline void fence() {
  HYPERSLAB_WARPGROUP(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"));
}
/// Ends a group of products.
__device__ inline void commit() {
  HYPERSLAB_WARPGROUP(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}
/// Until all groups but the newest kPending have ended.
template <int kPending>
__device__ void wait() {
  HYPERSLAB_WARPGROUP(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory"));
}
/// After a wait: keeps the compiler from reading or writing a product's registers before it.
template <int kBlocks>
__device__ void pin(float (&sums)[kBlocks][4]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[block][i])::"memory");
  }
}
/// A value that is the same in all threads of a warp, told to the compiler: values derived from it
/// lie in uniform registers, which operands in shared memory are named by. Loops over tiles count
/// with such values; a product else takes ten instructions more.
__device__ inline int uniform(int value) { return __shfl_sync(0xFFFFFFFFU, value, 0); }

/// Raises, or lowers, the registers of each thread of a warpgroup, in all its warps. A raise waits
/// until the block's pool has enough, so another warpgroup must lower its own.
template <int kRegisters>
__device__ void take_registers() {
  HYPERSLAB_WARPGROUP(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)));
}
template <int kRegisters>
__device__ void give_registers() {
  HYPERSLAB_WARPGROUP(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)));
}

// Lane 4 g + t of warp w holds rows 16 w + g and 16 w + g + 8 of a product, of its block i of eight
// columns the columns 2 t and 2 t + 1: sums[i] is {(g, 2 t), (g, 2 t + 1), (g + 8, 2 t), ...}. Of
// an operand in registers, rows[step] are the columns [16 step, 16 step + 16) in pairs, as they lie
// in blocks 2 step and 2 step + 1 of sums.

#define HYPERSLAB_BLOCK(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define HYPERSLAB_BLOCKS(d)                                                                   \
  HYPERSLAB_BLOCK(d, 0), HYPERSLAB_BLOCK(d, 1), HYPERSLAB_BLOCK(d, 2), HYPERSLAB_BLOCK(d, 3), \
      HYPERSLAB_BLOCK(d, 4), HYPERSLAB_BLOCK(d, 5), HYPERSLAB_BLOCK(d, 6), HYPERSLAB_BLOCK(d, 7)
#define HYPERSLAB_MORE_BLOCKS(d)                                                                \
  HYPERSLAB_BLOCK(d, 8), HYPERSLAB_BLOCK(d, 9), HYPERSLAB_BLOCK(d, 10), HYPERSLAB_BLOCK(d, 11), \
      HYPERSLAB_BLOCK(d, 12), HYPERSLAB_BLOCK(d, 13), HYPERSLAB_BLOCK(d, 14),                   \
      HYPERSLAB_BLOCK(d, 15)
#define HYPERSLAB_LAST_BLOCKS(d)                                                                  \
  HYPERSLAB_BLOCK(d, 16), HYPERSLAB_BLOCK(d, 17), HYPERSLAB_BLOCK(d, 18), HYPERSLAB_BLOCK(d, 19), \
      HYPERSLAB_BLOCK(d, 20), HYPERSLAB_BLOCK(d, 21), HYPERSLAB_BLOCK(d, 22),                     \
      HYPERSLAB_BLOCK(d, 23)
#define HYPERSLAB_FINAL_BLOCKS(d)                                                                 \
  HYPERSLAB_BLOCK(d, 24), HYPERSLAB_BLOCK(d, 25), HYPERSLAB_BLOCK(d, 26), HYPERSLAB_BLOCK(d, 27), \
      HYPERSLAB_BLOCK(d, 28), HYPERSLAB_BLOCK(d, 29), HYPERSLAB_BLOCK(d, 30),                     \
      HYPERSLAB_BLOCK(d, 31)
#define HYPERSLAB_ROWS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
// Operands: sums, the two factors, and 1 if sums are added to. Products of rows with rows take
// both from shared memory; those with columns take the left one from registers.
#define HYPERSLAB_BY_ROWS(type)                                                       \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                                  \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                         \
  " "                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
  "%32, %33, adds, 1, 1, 0, 0;\n}"
#define HYPERSLAB_BY_COLUMNS_64(type)                                                 \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"                                  \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                         \
  " "                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
  "{%32, %33, %34, %35}, %36, adds, 1, 1, 1;\n}"
#define HYPERSLAB_BY_COLUMNS_128(type)                                                \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"                                  \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
  " "                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
  "{%64, %65, %66, %67}, %68, adds, 1, 1, 1;\n}"
#define HYPERSLAB_TILES_192(type)                                                     \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %98, 0;\n"                                  \
  "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type                        \
  " "                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "  \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "  \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, " \
  "%96, %97, adds, 1, 1, 0, %99;\n}"
// Tiles of both factors out of shared memory; the last two operands are 1 of a left, or right, one
// that is summed over its rows.
#define HYPERSLAB_TILES_ANY_128(type)                                                 \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                  \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
  " "                                                                                 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
  "%64, %65, adds, 1, 1, %67, %68;\n}"
#define HYPERSLAB_TILES_ANY_256(type)                                                            \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                                            \
  "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                   \
  " "                                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
  "%127}, "                                                                                      \
  "%128, %129, adds, 1, 1, %131, %132;\n}"

/// 64 columns of rows in registers.
using Rows = std::uint32_t[kRows / kStep][4];

/// sums (64 x 64) = a b^T.
template <class T, int kWidth>
__device__ void multiply_rows(const Tile<kWidth>& a, const Tile<kWidth>& b, float (&sums)[8][4]) {
#pragma unroll
  for (int step = 0; step < kWidth / kStep; ++step) {
    const int adds = step > 0 ? 1 : 0;
    if constexpr (std::is_same_v<T, bf16>) {
      HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_BY_ROWS("bf16")
                                       : HYPERSLAB_BLOCKS(sums)
                                       : "l"(a.columns(step)), "l"(b.columns(step)), "r"(adds)
                                       : "memory"));
    } else {
      HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_BY_ROWS("f16")
                                       : HYPERSLAB_BLOCKS(sums)
                                       : "l"(a.columns(step)), "l"(b.columns(step)), "r"(adds)
                                       : "memory"));
    }
  }
}

/// sums (64 x kWidth) += a b, for `a` (64 x 64).
template <class T, int kWidth>
__device__ void add_product(const Rows& a, const Tile<kWidth>& b, float (&sums)[kWidth / 8][4]) {
  static_assert(kWidth == 64 || kWidth == 128);
  constexpr bool kBrain = std::is_same_v<T, bf16>;
  constexpr int kAdds = 1;
#pragma unroll
  for (int step = 0; step < kRows / kStep; ++step) {
    if constexpr (kWidth == 64 && kBrain) {
      HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_BY_COLUMNS_64("bf16")
                                       : HYPERSLAB_BLOCKS(sums)
                                       : HYPERSLAB_ROWS(a[step]), "l"(b.rows(step)), "r"(kAdds)
                                       : "memory"));
    } else if constexpr (kWidth == 64) {
      HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_BY_COLUMNS_64("f16")
                                       : HYPERSLAB_BLOCKS(sums)
                                       : HYPERSLAB_ROWS(a[step]), "l"(b.rows(step)), "r"(kAdds)
                                       : "memory"));
    } else if constexpr (kBrain) {
      HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_BY_COLUMNS_128("bf16")
                                       : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums)
                                       : HYPERSLAB_ROWS(a[step]), "l"(b.rows(step)), "r"(kAdds)
                                       : "memory"));
    } else {
      HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_BY_COLUMNS_128("f16")
                                       : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums)
                                       : HYPERSLAB_ROWS(a[step]), "l"(b.rows(step)), "r"(kAdds)
                                       : "memory"));
    }
  }
}

/// sums (64 x 192) = a b, or += with `adds`, of 16 columns of `a` and rows of b, or with kByColumns
/// columns of b^T.
template <class T, bool kByColumns>
__device__ void multiply_step(std::uint64_t a, std::uint64_t b, bool adds, float (&sums)[24][4]) {
  if constexpr (std::is_same_v<T, bf16>) {
    HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_TILES_192("bf16")
                                     : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums),
                                       HYPERSLAB_LAST_BLOCKS(sums)
                                     : "l"(a), "l"(b), "r"(adds ? 1 : 0), "n"(kByColumns ? 0 : 1)
                                     : "memory"));
  } else {
    HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_TILES_192("f16")
                                     : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums),
                                       HYPERSLAB_LAST_BLOCKS(sums)
                                     : "l"(a), "l"(b), "r"(adds ? 1 : 0), "n"(kByColumns ? 0 : 1)
                                     : "memory"));
  }
}
/// sums (64 x 192) = a b, or += with `adds`, for `a` (64 x 64) and b (64 x 192).
template <class T>
__device__ void multiply_tiles(const Tile<64>& a, const Tile<192>& b, bool adds,
                               float (&sums)[24][4]) {
#pragma unroll
  for (int step = 0; step < kRows / kStep; ++step) {
    multiply_step<T, false>(a.columns(step), b.rows(step), adds || step > 0, sums);
  }
}
/// sums (64 x 192) = a b^T, or +=, for b (192 x 64), which lies as three tiles of 64 rows would.
template <class T>
__device__ void multiply_tiles(const Tile<64>& a, const Tile<64>& b, bool adds,
                               float (&sums)[24][4]) {
#pragma unroll
  for (int step = 0; step < kRows / kStep; ++step) {
    multiply_step<T, true>(a.columns(step), b.columns(step), adds || step > 0, sums);
  }
}

/// A way to sum a tile: its columns, or its rows.
enum class Over : int { columns, rows };

/// sums (64 x 128 or 64 x 256) = a b, or += with `adds`, of one step of both tiles: of columns as
/// Tile::columns names it, of rows as Tile::rows does.
template <class T, Over kLeft, Over kRight, int kBlocks>
__device__ void multiply_step_of(std::uint64_t a, std::uint64_t b, bool adds,
                                 float (&sums)[kBlocks][4]) {
  static_assert(kBlocks == 16 || kBlocks == 32);
  constexpr bool kBrain = std::is_same_v<T, bf16>;
  [[maybe_unused]] constexpr int kA = static_cast<int>(kLeft);
  [[maybe_unused]] constexpr int kB = static_cast<int>(kRight);
  [[maybe_unused]] const int add = adds ? 1 : 0;
  if constexpr (kBlocks == 16 && kBrain) {
    HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_TILES_ANY_128("bf16")
                                     : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums)
                                     : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB)
                                     : "memory"));
  } else if constexpr (kBlocks == 16) {
    HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_TILES_ANY_128("f16")
                                     : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums)
                                     : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB)
                                     : "memory"));
  } else if constexpr (kBrain) {
    HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_TILES_ANY_256("bf16")
                                     : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums),
                                       HYPERSLAB_LAST_BLOCKS(sums), HYPERSLAB_FINAL_BLOCKS(sums)
                                     : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB)
                                     : "memory"));
  } else {
    HYPERSLAB_WARPGROUP(asm volatile(HYPERSLAB_TILES_ANY_256("f16")
                                     : HYPERSLAB_BLOCKS(sums), HYPERSLAB_MORE_BLOCKS(sums),
                                       HYPERSLAB_LAST_BLOCKS(sums), HYPERSLAB_FINAL_BLOCKS(sums)
                                     : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB)
                                     : "memory"));
  }
}

#undef HYPERSLAB_WARPGROUP
#undef HYPERSLAB_BLOCK
#undef HYPERSLAB_BLOCKS
#undef HYPERSLAB_MORE_BLOCKS
#undef HYPERSLAB_LAST_BLOCKS
#undef HYPERSLAB_FINAL_BLOCKS
#undef HYPERSLAB_ROWS
#undef HYPERSLAB_BY_ROWS
#undef HYPERSLAB_BY_COLUMNS_64
#undef HYPERSLAB_BY_COLUMNS_128
#undef HYPERSLAB_TILES_192
#undef HYPERSLAB_TILES_ANY_128
#undef HYPERSLAB_TILES_ANY_256

}  // namespace hyperslab::ops::cuda::warpgroup
