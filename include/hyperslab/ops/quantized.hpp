// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/activation.hpp"

namespace hyperslab::ops {

/// The format of a quantized weight matrix's elements.
///   int8  w = scale * code, codes in [-127, 127]; one scale a row: amax / 127
///   int4  w = scale * code, codes in [-7, 7]; one scale for each group of neighbors in a row:
///         amax / 7
///   nf4   w = scale * kNormalFloat4[code] (Dettmers et al. 2023, QLoRA); one scale for each group
///         of 64: the amax, itself stored in 8 bits
enum class WeightFormat : std::uint8_t { int8, int4, nf4 };
[[nodiscard]] std::string_view name_of(WeightFormat format);

/// The 16 values of NF4, ascending; 7 is zero.
inline constexpr std::array<float, 16> kNormalFloat4 = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

inline constexpr Dim kNormalFloatGroup = 64;  // elements of a scale
inline constexpr Dim kScaleBlock = 256;       // 8-bit scales of nf4 that share an f32

/// A quantized matrix (M, K), row-major. K is a multiple of the group, and even.
///   int8  codes (M, K) two's complement in u8; scales (M) f32
///   int4  codes (M, K / 2): element 2i in the low four bits of byte i, element 2i + 1 in the high
///         four, each as code + 8; scales (M, K / group) f16
///   nf4   codes (M, K / 2) in the same order, each an index of kNormalFloat4; scales (M, K / 64)
///         u8, and block_scales (ceil(M * K / 64 / 256)) f32: the scale of group i of the matrix is
///         scales[i] * block_scales[i / 256], of which a block's is its largest scale / 255
template <class AnyView>
struct BasicQuantizedMatrix {
  WeightFormat format = WeightFormat::int8;
  Dim group = 0;  ///< elements of a scale; int8: K
  Shape shape;    ///< (M, K)
  AnyView codes;
  AnyView scales;
  AnyView block_scales = {};  ///< nf4
  Dim first_scale = 0;  ///< nf4: scales before `scales` in the first block; on CPUs and read alone
};
using QuantizedMatrix = BasicQuantizedMatrix<View>;
using CQuantizedMatrix = BasicQuantizedMatrix<CView>;
[[nodiscard]] CQuantizedMatrix as_const(const QuantizedMatrix& matrix);
/// Rows [first, first + count) of a matrix, in its memory.
[[nodiscard]] QuantizedMatrix rows_of(const QuantizedMatrix& matrix, Dim first, Dim count);
[[nodiscard]] CQuantizedMatrix rows_of(const CQuantizedMatrix& matrix, Dim first, Dim count);

/// Bytes of the three arrays for a matrix of this shape.
struct QuantizedBytes {
  std::size_t codes = 0;
  std::size_t scales = 0;
  std::size_t block_scales = 0;
  [[nodiscard]] std::size_t total() const { return codes + scales + block_scales; }
};
[[nodiscard]] QuantizedBytes quantized_bytes(WeightFormat format, Dim group, const Shape& shape);

/// Rounds weight (M, K), f32, f64, bf16 or f16, to `out`: codes to the nearest, ties to even (nf4:
/// to the nearest of the 16 values, ties to the lower), after the scale itself was rounded to its
/// stored type. A group of zeros has the scale 0 and codes of zero. The same bits on every device
/// for the same values:
///   - elements are converted to f32 first, and every operation is in f32, rounded once. Scales are
///     quotients, amax / 127 (int4: / 7). Codes are rounded quotients, element / scale
///     (a division, no product with an inverse), kept within the codes of the format.
///   - nf4: a block's scale is its largest group magnitude / 255. A group's code is the rounded
///     quotient of its magnitude and that, ties to even. Elements are divided by the product of
///     code and block scale; the quotient is compared with the exact middles of kNormalFloat4.
///   - a group with an infinity or a NaN has that as its scale (nf4: its block has it, and all its
///     groups the code 0), as has a group of int4 beyond 7 times the largest f16. Where a scale is
///     0 or not finite, all codes are of zero; dequantize gives NaN where it is not finite. Which
///     NaN is not fixed.
void quantize(Context& ctx, CView weight, const QuantizedMatrix& out);

/// out (M, K), f32, f64, bf16 or f16: code * scale in f32, rounded once. The same bits on every
/// device. The scale of nf4 is the product code * block scale, rounded to f32 first.
void dequantize(Context& ctx, const CQuantizedMatrix& weight, View out);

/// out = dequantize(quantize(weight)) without the codes: the values that training with fake
/// quantization computes with (Jacob et al. 2018). weight and out: (M, K), may be the same memory.
void fake_quantize(Context& ctx, WeightFormat format, Dim group, CView weight, View out);

/// scales (M) f32: of the rows of weight (M, K), as quantize to int8 finds them. Ranks that hold
/// parts of a row find its scale as the largest of theirs; the bits as i32 are ordered as the
/// scales are, with infinity and NaN above all numbers.
void int8_row_scales(Context& ctx, CView weight, View scales);
/// quantize to int8 with the scales that `out` has: the codes of a part of a row equal the whole
/// row's if the scales do.
void quantize_scaled(Context& ctx, CView weight, const QuantizedMatrix& out);
/// fake_quantize to int8 with given scales (M) f32.
void fake_quantize_scaled(Context& ctx, CView weight, CView scales, View out);

/// The format in which quantized_linear_forward takes its input.
enum class ActivationFormat : std::uint8_t {
  none,          ///< as it is; weights are widened
  dynamic_int8,  ///< each row rounded to int8 as a row of WeightFormat::int8; int8 weights only
};

/// Rows up to this long have sums of products of int8 codes that an i32 holds.
inline constexpr Dim kMostExactK = 133'144;

/// y = x weight^T + bias. x: (..., K), y: (..., M), bias (M) or absent, of one dtype.
/// With ActivationFormat::none sums are over the widened weights, in f32. With dynamic_int8
/// the sum over K is exact in i32, then y = sum * row_scale * weight_scale + bias in f32, in this
/// order, rounded once: the same bits on every device for the same x. Each of these operations is
/// rounded to f32 (no product and sum are merged), then the result to the dtype of y; x and bias
/// are converted to f32 before. K is at most kMostExactK.
void quantized_linear_forward(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                              ActivationFormat activations, View y);

/// linear_gated_forward() of quantized weights (2F, K): see there.
void quantized_linear_gated_forward(Context& ctx, CView x, const CQuantizedMatrix& weight,
                                    CView bias, ActivationFormat activations, Activation activation,
                                    View pre, View y);

}  // namespace hyperslab::ops
