// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bf16_support.hpp"
#include "gemm.hpp"

// Products of matrices stored in bf16, by the instructions of AMX or AVX512_BF16.

namespace hyperslab::ops::cpu {

/// A row-major result of a product of bf16, in bf16 or f32: its earlier values are added if
/// `accumulates`, and the bias, one element a column, if there is one.
struct Bf16Result {
  void* data;
  DType dtype;
  Dim row;
  bool accumulates = false;
  const bf16* bias = nullptr;
};

/// c = alpha op(a) op(b) + bias, or c += that. Two neighbours along K are multiplied at once
/// (vdpbf16ps): exact products, f32 sums rounded to nearest even, denormals taken for zero. Sums
/// are in f32 in one order for any number of threads; a result in bf16 is rounded once. Needs
/// has_bf16_products(). Works in memory of the calling thread that later calls use again.
void bf16_gemm(int threads, GemmSize n, float alpha, Operand<bf16> a, Operand<bf16> b,
               const Bf16Result& c);

}  // namespace hyperslab::ops::cpu
