// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantized.cuh"

// Weights on their way to the tensor cores. mma.m16n8k16 multiplies 16 rows of weights by 8 rows of
// x: lane 4 g + t holds rows g and g + 8 of the weights and row g of x, and of the products those
// of rows g and g + 8 with rows 2 t and 2 t + 1 of x. Which columns a lane holds is free as long as
// both operands agree: here its neighbors in memory, so that it loads 16 bytes at once.

namespace hyperslab::ops::cuda {

/// c += a b in f32, of 16-bit elements in pairs.
template <class T>
__device__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// c += a b in i32, of 8-bit elements in fours: mma.m16n8k32.
__device__ inline void multiply_add(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Words that are read once: they leave the first cache to x.
template <int kWords>
__device__ void load_stream(const void* from, std::uint32_t (&to)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
  }
}

/// a - b of two elements in a word.
template <class T>
__device__ std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
  Pair left;
  Pair right;
  memcpy(&left, &a, sizeof a);
  memcpy(&right, &b, sizeof b);
  const Pair difference = __hsub2(left, right);
  std::uint32_t out;
  memcpy(&out, &difference, sizeof out);
  return out;
}

// Formats turn a lane's words of a row into pairs of elements. kWords: words loaded at once.
// kCodes: elements in them. widen() gives elements in the order of arrange(), which x follows.
// Small integers become elements by a power of two whose last bits they are, less that power:
// exact, and without a conversion.

/// 16-bit weights.
template <class T>
struct PlainWeights {
  static constexpr int kWords = 4;
  static constexpr int kCodes = 8;
  static constexpr bool kGrouped = false;
  static constexpr bool kTabled = false;
  __device__ static void widen(const std::uint32_t (&words)[kWords],
                               std::uint32_t (&pairs)[kCodes / 2], const std::uint32_t*) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) pairs[i] = words[i];
  }
  __device__ static void arrange(std::uint32_t (&)[kCodes / 2]) {}
};

/// int8: the lower seven bits, less 128 if the eighth is set.
template <class T>
struct Int8Weights {
  static constexpr int kWords = 4;
  static constexpr int kCodes = 16;
  static constexpr bool kGrouped = false;
  static constexpr bool kTabled = false;
  __device__ static std::uint32_t pair(std::uint32_t bytes) {
    if constexpr (std::is_same_v<T, bf16>) {  // 128 + lower bits, less 128 or 256
      return subtract_pairs<T>((bytes & 0x007F007FU) | 0x43004300U,
                               (bytes & 0x00800080U) | 0x43004300U);
    } else {  // 1024 + code + 128, less 1152
      return subtract_pairs<T>((bytes ^ 0x00800080U) | 0x64006400U, 0x64806480U);
    }
  }
  __device__ static void widen(const std::uint32_t (&words)[kWords],
                               std::uint32_t (&pairs)[kCodes / 2], const std::uint32_t*) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      pairs[2 * i] = pair(__byte_perm(words[i], 0, 0x4140));
      pairs[2 * i + 1] = pair(__byte_perm(words[i], 0, 0x4342));
    }
  }
  __device__ static void arrange(std::uint32_t (&)[kCodes / 2]) {}
};

/// int4: a word has elements 0 to 7, and a mask takes 0 and 4, 1 and 5, 2 and 6, 3 and 7 as pairs.
template <class T, int kLoaded>
struct Int4Weights {
  static constexpr int kWords = kLoaded;
  static constexpr int kCodes = 8 * kLoaded;
  static constexpr bool kGrouped = true;
  static constexpr bool kTabled = false;
  __device__ static void widen(const std::uint32_t (&words)[kWords],
                               std::uint32_t (&pairs)[kCodes / 2], const std::uint32_t*) {
    constexpr bool kBrain = std::is_same_v<T, bf16>;
    constexpr std::uint32_t kPower = kBrain ? 0x43004300U : 0x64006400U;  // 128 or 1024
    constexpr std::uint32_t kZero = kBrain ? 0x43084308U : 0x64086408U;   // with the code of 0
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        pairs[4 * i + k] = subtract_pairs<T>((words[i] >> (4 * k) & 0x000F000FU) | kPower, kZero);
      }
    }
  }
  __device__ static void arrange(std::uint32_t (&pairs)[kCodes / 2]) {
#pragma unroll
    for (int i = 0; i < kCodes / 2; i += 4) {
      const std::uint32_t from[4] = {pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]};
      pairs[i] = __byte_perm(from[0], from[2], 0x5410);
      pairs[i + 1] = __byte_perm(from[0], from[2], 0x7632);
      pairs[i + 2] = __byte_perm(from[1], from[3], 0x5410);
      pairs[i + 3] = __byte_perm(from[1], from[3], 0x7632);
    }
  }
};

/// nf4: a table gives the pair of elements of each byte. Its values are rounded to T.
template <class T>
struct NormalWeights {
  static constexpr int kWords = 2;
  static constexpr int kCodes = 16;
  static constexpr bool kGrouped = true;
  static constexpr bool kTabled = true;
  __device__ static void widen(const std::uint32_t (&words)[kWords],
                               std::uint32_t (&pairs)[kCodes / 2], const std::uint32_t* table) {
#pragma unroll
    for (int i = 0; i < kCodes / 2; ++i) pairs[i] = table[words[i / 4] >> (8 * (i % 4)) & 255];
  }
  __device__ static void arrange(std::uint32_t (&)[kCodes / 2]) {}
};

}  // namespace hyperslab::ops::cuda
