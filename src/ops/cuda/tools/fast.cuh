// SPDX-License-Identifier: Apache-2.0
#pragma once

// Single instructions that approximate, for kernels whose results are rounded to 16 bits. Subnormal
// numbers become zero.

namespace hyperslab::ops::cuda {

inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2 = 0.69314718F;

/// 2^x, relative error at most 2^-22 (PTX ISA, ex2.approx).
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, relative error at most 2^-23 (rcp.approx).
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace hyperslab::ops::cuda
