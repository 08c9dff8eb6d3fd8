// SPDX-License-Identifier: Apache-2.0
// Products of matrices in 8-bit floats (Micikevicius et al. 2022, arXiv:2209.05433), whose scales
// are chosen from the values at hand ("current scaling").
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

/// e4m3 holds up to 448 with 3 bits of fraction and has no infinity; e5m2 up to 57,344 with 2 bits.
enum class Fp8Format : std::uint8_t { e4m3, e5m2 };
/// Values that share a scale: all of a matrix, or a row of it.
enum class Fp8Scaling : std::uint8_t { tensor, row };

[[nodiscard]] constexpr float largest_value(Fp8Format format) {
  return format == Fp8Format::e4m3 ? 448.0F : 57344.0F;
}

/// A matrix of M rows, each the factors of one element's sum: element (m, k) is code (m, k) as a
/// float of the format, times the scale of row m.
template <class AnyView>
struct BasicFp8Matrix {
  Fp8Format format = Fp8Format::e4m3;
  Fp8Scaling scaling = Fp8Scaling::tensor;
  AnyView codes;    ///< (M, K) u8; K is a multiple of kFp8Multiple
  AnyView largest;  ///< f32, (1) or (M): largest magnitude of the values that share a scale
  AnyView scales;   ///< f32, (1) or (M)
};
using Fp8Matrix = BasicFp8Matrix<View>;
using CFp8Matrix = BasicFp8Matrix<CView>;
[[nodiscard]] CFp8Matrix as_const(const Fp8Matrix& matrix);

/// Whether the largest magnitudes are found in a pass over x, or lie there already.
enum class Fp8Largest : bool { found, given };

/// What cuBLASLt asks of the length of its sums.
inline constexpr Dim kFp8Multiple = 16;

/// The codes of x (R, C) and of its transpose; one of the two may be absent (no codes).
/// straight: (R, C); transposed: (C, R rounded up to kFp8Multiple), whose last columns are 0.
/// A scale is the largest magnitude that shares it over largest_value; a code is the value times
/// the inverse, rounded to nearest even. Values that are not finite make all that share their scale
/// NaN. The bits are the same on every device. With a scale a tensor `largest` may be what an
/// earlier call found of the same x, which is then read once.
void fp8_quantize(Context& ctx, CView x, const Fp8Matrix& straight, const Fp8Matrix& transposed,
                  Fp8Largest largest = Fp8Largest::found);

/// How a GPU adds up products: in its full accumulators, or faster with fewer bits between.
enum class Fp8Sums : std::uint8_t { exact, fast };

/// c = a b^T + bias, or c += a b^T with `accumulate`. a: (M, K), b: (N, K) of one scaling, not both
/// e5m2; bias: (N) of c's dtype or absent; c: (M, N) f32 or bf16. Sums are in f32.
void fp8_matmul(Context& ctx, const CFp8Matrix& a, const CFp8Matrix& b, CView bias, Fp8Sums sums,
                Accumulate accumulate, View c);

}  // namespace hyperslab::ops
