// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common.cuh"
#include "fast.cuh"

namespace hyperslab::ops::cuda {

struct ValueSlope {
  float value;
  float slope;
};

/// Accurate functions for f32; for 16-bit elements ones whose error is far below their rounding.
template <bool kFast>
__device__ float sigmoid(float x) {
  if constexpr (kFast) return reciprocal(1.0F + power_of_2(-kLog2E * x));
  return 1.0F / (1.0F + expf(-x));
}

template <bool kFast>
struct Gelu {
  __device__ static ValueSlope at(float x) {
    const float cdf = kFast ? 0.5F + 0.5F * erff(0.70710678F * x) : normcdff(x);
    const float square = -0.5F * x * x;
    const float density = 0.398942280F * (kFast ? __expf(square) : expf(square));
    return {x * cdf, cdf + x * density};
  }
};

/// 0.5 (1 + tanh(u)) is sigmoid(2u), which does not cancel for negative u.
template <bool kFast>
struct GeluTanh {
  __device__ static ValueSlope at(float x) {
    constexpr float kScale = 1.59576912F;  // 2 sqrt(2 / pi)
    constexpr float kCubic = 0.044715F * kScale;
    const float square = x * x;
    const float gate = sigmoid<kFast>(x * fmaf(kCubic, square, kScale));
    const float du = fmaf(3 * kCubic, square, kScale);
    return {x * gate, fmaf(fmaf(-gate, gate, gate), x * du, gate)};
  }
};

template <bool kFast>
struct Relu {
  __device__ static ValueSlope at(float x) {
    return {x <= 0.0F ? 0.0F : x, x > 0.0F ? 1.0F : 0.0F};
  }
};

template <bool kFast>
struct Silu {
  __device__ static ValueSlope at(float x) {
    const float gate = sigmoid<kFast>(x);
    return {x * gate, gate + x * gate * (1.0F - gate)};
  }
};

template <bool kFast>
struct ReluSquared {
  __device__ static ValueSlope at(float x) {
    const float positive = x <= 0.0F ? 0.0F : x;
    return {positive * positive, 2.0F * positive};
  }
};

/// Calls body with the function of `activation`, for gated ones the gate's.
template <bool kFast, class Body>
void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu: return body(Gelu<kFast>());
    case Activation::geglu_tanh:
    case Activation::gelu_tanh: return body(GeluTanh<kFast>());
    case Activation::relu: return body(Relu<kFast>());
    case Activation::silu:
    case Activation::swiglu: return body(Silu<kFast>());
    case Activation::relu_squared: return body(ReluSquared<kFast>());
  }
}

/// act(gate) up as gated_forward has it of elements stored as T, for kernels that do it besides.
template <class T>
__device__ float gated(Activation activation, float gate, float up) {
  constexpr bool kFast = sizeof(T) == 2;
  gate = rounded<T>(gate);
  up = rounded<T>(up);
  switch (activation) {
    case Activation::swiglu: return up * Silu<kFast>::at(gate).value;
    case Activation::geglu: return up * Gelu<kFast>::at(gate).value;
    default: return up * GeluTanh<kFast>::at(gate).value;
  }
}

/// The output of activation_forward for an input.
template <class T>
__device__ float activated(Activation activation, float pre) {
  constexpr bool kFast = sizeof(T) == 2;
  pre = rounded<T>(pre);
  switch (activation) {
    case Activation::gelu: return Gelu<kFast>::at(pre).value;
    case Activation::gelu_tanh: return GeluTanh<kFast>::at(pre).value;
    case Activation::relu: return Relu<kFast>::at(pre).value;
    case Activation::silu: return Silu<kFast>::at(pre).value;
    default: return ReluSquared<kFast>::at(pre).value;
  }
}

}  // namespace hyperslab::ops::cuda
