// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "cuda/tools/quantized.cuh"
#include "gemm.hpp"
#include "matrix_vector.hpp"
#include "quantized_workspace.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "quantized_linear_forward";

/// y = sum * row_scale * weight_scale + bias, in this order.
template <class T>
struct Finish {
  static constexpr int kWidth = 1;
  const std::int32_t* sums;
  const float* row_scales;
  const float* weight_scales;
  const T* bias;
  Dim M;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim row = i / M;
    const Dim m = i - row * M;
    y[i] = scaled_sum(sums[i], row_scales[row], weight_scales[m],
                      bias == nullptr ? nullptr : bias + m);
  }
};

/// y = x weight^T + bias of the widened weights, which lie in scratch memory.
void multiply_widened(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias, View y) {
  const QuantizedProduct product = {leading(x.shape()), weight.shape[0],        weight.shape[1],
                                    weight.format,      ActivationFormat::none, x.dtype()};
  const View widened(ctx.workspace(kName, quantized_linear_forward_workspace(product)), x.dtype(),
                     Device::cuda, weight.shape);
  cuda::dequantize(ctx, weight, widened);
  cuda::linear_forward(ctx, x, widened, bias, Accumulate::no, y);
}

/// The layout of codes, scales and sums of int8 activations in scratch memory.
struct Int8Scratch {
  static constexpr std::size_t kAlignment = 128;
  Int8Scratch(void* scratch, Dim rows, Dim M, Dim K)
      : codes(scratch, DType::u8, Device::cuda, {rows, K}),
        scales(after(codes), DType::f32, Device::cuda, {rows}),
        sums(after(scales), DType::i32, Device::cuda, {rows, M}) {}
  [[nodiscard]] static void* after(View view) {
    const auto end = reinterpret_cast<std::uintptr_t>(view.raw()) + view.bytes();
    return reinterpret_cast<void*>((end + kAlignment - 1) / kAlignment * kAlignment);
  }
  View codes, scales, sums;
};

/// The sums by cuBLASLt, of many rows; false if it has no algorithm for these sizes.
bool multiply_int8(Context& ctx, const Int8Scratch& x, const CQuantizedMatrix& weight) {
  const Dim rows = x.codes.shape()[0];
  const Dim M = weight.shape[0];
  const Dim K = weight.shape[1];
  if (rows <= kMatrixVectorRows || M % 4 != 0 || K == 0 || K % 16 != 0 ||
      !aligned(weight.codes.raw())) {
    return false;
  }
  Gemm p;
  p.op = kName;
  p.M = rows;
  p.N = M;
  p.K = K;
  p.in = DType::u8;
  p.out = DType::i32;
  p.a = {x.codes.raw(), K, Trans::no};
  p.b = {weight.codes.raw(), K, Trans::yes};
  p.c = x.sums.raw();
  p.ldc = M;
  return multiply(ctx, p);
}

void multiply_dynamic(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias, View y) {
  const Dim rows = leading(x.shape());
  const Dim M = weight.shape[0];
  const Dim K = weight.shape[1];
  const QuantizedProduct product = {rows,     M, K, weight.format, ActivationFormat::dynamic_int8,
                                    x.dtype()};
  const Int8Scratch scratch(ctx.workspace(kName, quantized_linear_forward_workspace(product)), rows,
                            M, K);
  cuda::quantize(ctx, x.reshaped({rows, K}),
                 {WeightFormat::int8, K, {rows, K}, scratch.codes, scratch.scales, {}});
  if (!multiply_int8(ctx, scratch, weight)) {
    const Int8Rows codes = {scratch.codes.data<std::uint8_t>(), scratch.scales.data<float>(), rows};
    return int8_matrix_vector(ctx, codes, weight, bias, y);
  }
  with_element(y.dtype(), kName, [&]<class T>(T) {
    const Finish<T> op = {scratch.sums.data<std::int32_t>(),
                          scratch.scales.data<float>(),
                          weight.scales.data<float>(),
                          optional_data<T>(bias),
                          M,
                          y.data<T>()};
    for_each(ctx, kName, rows, rows * M, false, op);
  });
}

}  // namespace

void quantized_linear_forward(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                              ActivationFormat activations, View y) {
  if (y.numel() == 0) return;
  if (activations == ActivationFormat::dynamic_int8) {
    return multiply_dynamic(ctx, x, weight, bias, y);
  }
  if (leading(x.shape()) <= kMatrixVectorRows) {
    return quantized_matrix_vector(ctx, x, weight, bias, y);
  }
  multiply_widened(ctx, x, weight, bias, y);
}

}  // namespace hyperslab::ops::cuda
