// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/activation.hpp"
#include "math.hpp"

namespace hyperslab::ops::cpu {

/// act(x) and its derivative; an unused one costs nothing after inlining.
template <class T>
struct ValueSlope {
  T value;
  T slope;
};

struct Gelu {
  template <class T>
  [[gnu::always_inline]] static ValueSlope<T> at(T x) {
    const T cdf = normal_cdf(x);
    const T density = T(0.39894228040143267794) * exponential(T(-0.5) * x * x);
    return {x * cdf, cdf + x * density};
  }
};

/// 0.5 (1 + tanh(u)) is sigmoid(2u), which does not cancel for negative u.
struct GeluTanh {
  template <class T>
  [[gnu::always_inline]] static ValueSlope<T> at(T x) {
    constexpr T kScale = T(1.59576912160573071176);  // 2 sqrt(2 / pi)
    const T gate = sigmoid(kScale * (x + T(0.044715) * x * x * x));
    const T du = kScale * (T(1) + T(3 * 0.044715) * x * x);
    return {x * gate, gate + x * gate * (T(1) - gate) * du};
  }
};

struct Relu {
  template <class T>
  [[gnu::always_inline]] static ValueSlope<T> at(T x) {
    return {x <= T(0) ? T(0) : x, x > T(0) ? T(1) : T(0)};
  }
};

struct Silu {
  template <class T>
  [[gnu::always_inline]] static ValueSlope<T> at(T x) {
    const T gate = sigmoid(x);
    return {x * gate, gate + x * gate * (T(1) - gate)};
  }
};

struct ReluSquared {
  template <class T>
  [[gnu::always_inline]] static ValueSlope<T> at(T x) {
    const T positive = x <= T(0) ? T(0) : x;
    return {positive * positive, T(2) * positive};
  }
};

/// Calls body with the function of `activation`, for gated ones the gate's.
template <class Body>
void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu: return body(Gelu());
    case Activation::geglu_tanh: return body(GeluTanh());
    case Activation::gelu_tanh: return body(GeluTanh());
    case Activation::relu: return body(Relu());
    case Activation::silu:
    case Activation::swiglu: return body(Silu());
    case Activation::relu_squared: return body(ReluSquared());
  }
}

}  // namespace hyperslab::ops::cpu
