// SPDX-License-Identifier: Apache-2.0
// Products of matrices in 8-bit floats (Micikevicius et al. 2022, arXiv:2209.05433), whose scales
// are chosen from the values at hand ("current scaling").
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

/// e4m3 holds up to 448 with 3 bits of fraction and has no infinity; e5m2 up to 57,344 with 2 bits.
enum class Fp8Format : std::uint8_t { e4m3, e5m2 };
/// Values that share a scale: all of a matrix, a row of it, kFp8Group neighbours in a row, or as
/// many in each of as many rows (1 x 128 and 128 x 128, arXiv:2412.19437 sec. 3.3).
enum class Fp8Scaling : std::uint8_t { tensor, row, group, block };

/// Neighbours that share a scale; at the end of a matrix they may be fewer.
inline constexpr Dim kFp8Group = 128;

/// Groups or blocks.
[[nodiscard]] constexpr bool has_groups(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::group || scaling == Fp8Scaling::block;
}

[[nodiscard]] constexpr float largest_value(Fp8Format format) {
  return format == Fp8Format::e4m3 ? 448.0F : 57344.0F;
}

/// A matrix of M rows, each the factors of one element's sum: element (m, k) is value (m, k), a
/// float of the format, times its scale.
template <class AnyView>
struct BasicFp8Matrix {
  Fp8Format format = Fp8Format::e4m3;
  Fp8Scaling scaling = Fp8Scaling::tensor;
  /// (M, K) u8; K is a multiple of kFp8Multiple, and with groups and blocks M is, too.
  AnyView values;
  AnyView amax;    ///< f32, as scales: amax of the values that share one; absent with
                   ///< groups and blocks, where it is found on the way
  AnyView scales;  ///< f32, fp8_scales_shape
};
using Fp8Matrix = BasicFp8Matrix<View>;
using CFp8Matrix = BasicFp8Matrix<CView>;
[[nodiscard]] CFp8Matrix as_const(const Fp8Matrix& matrix);

/// True if the amaxes are found in a pass over x, or lie there already.
enum class Fp8Amax : bool { found, given };

/// cuBLASLt asks for sums of a multiple of this length.
inline constexpr Dim kFp8Multiple = 16;

/// The shape of the scales of a matrix of this shape. tensor: (1); row: (M); group: (K / kFp8Group,
/// M), so that the scales of neighbouring rows are neighbours; block: (M / kFp8Group, K /
/// kFp8Group), divisions rounded up and rows of scales filled to a multiple of 4 with zeros. Groups
/// are as cuBLASLt reads them.
[[nodiscard]] Shape fp8_scales_shape(Fp8Scaling scaling, const Shape& values);

/// Rows of the FP8 values of a matrix of so many rows: with groups and blocks rounded up to
/// kFp8Multiple: with these scales cuBLASLt asks for multiples of 4, and in practice of 8
/// (Transformer Engine).
[[nodiscard]] Dim fp8_rows(Fp8Scaling scaling, Dim rows);

/// The FP8 values of x (R, C) and of its transpose, in one format and of one scaling; one of the
/// two may be absent (no values). straight: (fp8_rows, C), whose last rows are 0; transposed: (C, R
/// rounded up to kFp8Multiple), whose last columns are 0. With blocks the transpose has the same
/// FP8 values, with groups its own rows' values. A scale is the amax of its values over
/// largest_value; an FP8 value is the value times the inverse, rounded to nearest even.
/// Values that are not finite make all that share their scale NaN. The bits are the same on every
/// device. With a scale a tensor `amax` may come from an earlier call with the same x, which is
/// then read once; of both matrices only straight.amax is then read, or on a GPU written.
void fp8_quantize(Context& ctx, CView x, const Fp8Matrix& straight, const Fp8Matrix& transposed,
                  Fp8Amax amax = Fp8Amax::found);

/// The amax of x into `amax`, (1) f32, as fp8_quantize finds it for a tensor: NaN
/// is above all. Elements: a multiple of kFp8Multiple.
void fp8_amax(Context& ctx, CView x, View amax);

/// The scales of tensors with these amaxes. amax, scales: (n) f32.
void fp8_scales(Context& ctx, Fp8Format format, CView amax, View scales);

/// values (M, K) u8 -> transposed (K, M rounded up to kFp8Multiple), whose last columns become 0; K
/// is a multiple of kFp8Multiple.
void fp8_transpose(Context& ctx, CView values, View transposed);

/// The way in which a GPU adds up products: in its full accumulators, or faster with fewer bits
/// between.
enum class Fp8Sums : std::uint8_t { exact, fast };

/// c = a b^T + bias, or c += a b^T with `accumulate`. a: (M, K), b: (N, K), not both e5m2, of one
/// scaling or one of groups and the other of blocks, but not both of blocks; bias: (N) of c's dtype
/// or absent; c: (M, N) f32 or bf16. Sums are in f32; with groups and blocks each sum of kFp8Group
/// products is scaled, then added to the others, and `sums` is exact. Scales: 16-byte aligned.
void fp8_matmul(Context& ctx, const CFp8Matrix& a, const CFp8Matrix& b, CView bias, Fp8Sums sums,
                Accumulate accumulate, View c);

}  // namespace hyperslab::ops
