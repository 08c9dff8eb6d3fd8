// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "cuda/tools/handles.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops::cuda {

/// A row-major matrix, or `batch` of them `stride` elements apart; a stride of 0 is the same matrix
/// each time. `ld`: elements from row to row as stored.
struct Operand {
  const void* data = nullptr;
  Dim ld = 0;
  Trans trans = Trans::no;
  Dim stride = 0;
};

/// cuBLASLt's operation on op(a) op(b), here called ab, before it is stored. Columns are
/// c's.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< + bias (N)
  gelu,       ///< aux = ab, c = gelu_tanh(aux)
  gelu_bias,  ///< aux = ab + bias (N), c = gelu_tanh(aux)
  dgelu,      ///< c = ab * gelu_tanh'(aux)
};

/// The additional operands of a GEMM of FP8 values in u8: then a is (M, K) and b is (N, K)
/// transposed.
struct Fp8Operands {
  bool present = false;
  Fp8Scaling a_scaling = Fp8Scaling::tensor;
  Fp8Scaling b_scaling = Fp8Scaling::tensor;
  Fp8Format a_format = Fp8Format::e4m3;
  Fp8Format b_format = Fp8Format::e4m3;
  Fp8Sums sums = Fp8Sums::exact;
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
};

/// c = alpha op(a) op(b), with `accumulate` + beta c, or + beta addend if that is given, then the
/// epilogue. op(a): (M, K), op(b): (K, N), c and addend: (M, N). Sums are in f32. Of int8, a u8 of
/// two's complement, sums are in i32 and exact: c = op(a) op(b) alone, without alpha, `accumulate`
/// or epilogue; unless the u8 are FP8 values.
struct Gemm {
  std::string_view op;  ///< for messages
  Dim M = 0, N = 0, K = 0;
  DType in = DType::f32;   ///< dtype of a, b, bias and aux: f32, bf16, f16 or u8
  DType out = DType::f32;  ///< dtype of c: `in` or f32; for int8 i32; for 8-bit floats bf16 or f32
  Operand a, b;
  void* c = nullptr;
  Dim ldc = 0;
  Dim stride_c = 0;
  int batch = 1;
  float alpha = 1;
  bool accumulate = false;
  float beta = 1;
  const void* addend = nullptr;  ///< laid out and aligned as c
  Epilogue epilogue = Epilogue::none;
  void* bias = nullptr;
  void* aux = nullptr;  ///< (M, N) contiguous, not the memory of c
  Fp8Operands fp8;
};

/// Enqueues the GEMM. The first call of a kind of GEMM takes its algorithm from the table
/// that was adopted (ops::adopt_algorithms), or asks cuBLASLt for algorithms and times them into
/// scratch memory; later calls only enqueue. Returns false, and enqueues nothing, if cuBLASLt
/// has no algorithm with that epilogue, or for u8; without an epilogue that throws.
bool multiply(Context& ctx, const Gemm& gemm);

}  // namespace hyperslab::ops::cuda
