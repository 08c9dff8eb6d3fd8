// SPDX-License-Identifier: Apache-2.0
#pragma once

// Single instructions that approximate, for kernels whose results are rounded to 16 bits. They take
// what is too small for a normal number for zero.

namespace hyperslab::ops::cuda {

inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2 = 0.69314718F;

/// Within some 2e-7 of it (PTX ISA, ex2.approx).
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Likewise within 1e-7 (rcp.approx).
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Within 5e-4 (tanh.approx).
__device__ inline float hyperbolic_tangent(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace hyperslab::ops::cuda
