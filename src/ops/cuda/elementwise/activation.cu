// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "cuda/tools/activation.cuh"
#include "cuda/tools/amax.cuh"

namespace hyperslab::ops::cuda {
namespace {

template <class Function, class T>
struct Forward {
  static constexpr int kWidth = kVector<T>;
  const T* x;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    float value[N];
    load<N>(x + i, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = Function::at(value[k]).value;
    store<N>(y + i, value);
  }
};

template <class Function, class T>
struct Backward {
  static constexpr int kWidth = kVector<T>;
  const T* x;
  const T* dy;
  T* dx;
  template <int N>
  __device__ void at(Dim i) const {
    float value[N];
    float gradient[N];
    load<N>(x + i, value);
    load<N>(dy + i, gradient);
#pragma unroll
    for (int k = 0; k < N; ++k) gradient[k] *= Function::at(value[k]).slope;
    store<N>(dx + i, gradient);
  }
};

/// The magnitude_bits of the amax of values stored as T.
template <class T, int N>
__device__ unsigned most_of(const float (&values)[N]) {
  unsigned most = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) most = max(most, magnitude_bits(rounded<T>(values[k])));
  return most;
}

/// Element i of y belongs to row i / F; its gate is at i + row * F, its up another F further.
template <class Function, class T>
struct Gated {
  static constexpr int kWidth = kVector<T>;
  Dim F;
  const T* gate_up;
  T* y;
  template <int N>
  __device__ unsigned at(Dim i) const {
    const T* from = gate_up + i + i / F * F;
    float gate[N];
    float up[N];
    load<N>(from, gate);
    load<N>(from + F, up);
#pragma unroll
    for (int k = 0; k < N; ++k) up[k] *= Function::at(gate[k]).value;
    store<N>(y + i, up);
    return most_of<T>(up);
  }
};

template <class Function, class T>
struct GatedGradient {
  static constexpr int kWidth = kVector<T>;
  Dim F;
  const T* gate_up;
  const T* dy;
  T* dgate_up;
  template <int N>
  __device__ unsigned at(Dim i) const {
    const Dim offset = i + i / F * F;
    float gate[N];
    float up[N];
    float gradient[N];
    load<N>(gate_up + offset, gate);
    load<N>(gate_up + offset + F, up);
    load<N>(dy + i, gradient);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const ValueSlope f = Function::at(gate[k]);
      gate[k] = gradient[k] * up[k] * f.slope;
      up[k] = gradient[k] * f.value;
    }
    store<N>(dgate_up + offset, gate);
    store<N>(dgate_up + offset + F, up);
    return max(most_of<T>(gate), most_of<T>(up));
  }
};

}  // namespace

void activation_forward(Context& ctx, Activation activation, CView x, View y) {
  constexpr const char* kName = "activation_forward";
  with_element(x.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      const Forward<Function, T> op = {x.data<T>(), y.data<T>()};
      for_each(ctx, kName, x, aligned(op.x, op.y), op);
    });
  });
}

void activation_backward(Context& ctx, Activation activation, CView x, CView dy, View dx) {
  constexpr const char* kName = "activation_backward";
  with_element(x.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      const Backward<Function, T> op = {x.data<T>(), dy.data<T>(), dx.data<T>()};
      for_each(ctx, kName, x, aligned(op.x, op.dy, op.dx), op);
    });
  });
}

void gated_forward(Context& ctx, Activation activation, CView gate_up, View y, View amax) {
  constexpr const char* kName = "gated_forward";
  with_element(y.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      const Gated<Function, T> op = {y.shape().back(), gate_up.data<T>(), y.data<T>()};
      const bool vectors = op.F % kVector<T> == 0 && aligned(op.gate_up, op.y);
      for_each_amax(ctx, kName, y, vectors, op, amax);
    });
  });
}

void gated_backward(Context& ctx, Activation activation, CView gate_up, CView dy, View dgate_up,
                    View amax) {
  constexpr const char* kName = "gated_backward";
  with_element(dy.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      const GatedGradient<Function, T> op = {dy.shape().back(), gate_up.data<T>(), dy.data<T>(),
                                             dgate_up.data<T>()};
      const bool vectors = op.F % kVector<T> == 0 && aligned(op.gate_up, op.dy, op.dgate_up);
      for_each_amax(ctx, kName, dy, vectors, op, amax);
    });
  });
}

}  // namespace hyperslab::ops::cuda
