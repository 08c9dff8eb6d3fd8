// SPDX-License-Identifier: Apache-2.0
// Activations whose rows the router weighs. Neighboring threads go through all rows as one vector:
// blocks that loop over a row each reach a quarter of the memory's rate.
#include "checks.hpp"
#include "cuda/tools/activation.cuh"
#include "used_rows.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarpsOfBlock = 8;
constexpr Dim kMostActivationBlocks = Dim{1} << 20;

template <class T>
struct Weighted {
  const T* pre;
  const float* weights;
  const std::int32_t* used;  ///< null: all rows
  Dim rows;
  Dim F;
  bool is_gated;

  Weighted(const WeightedRows& in, CView inner, Activation activation)
      : pre(in.pre.data<T>()),
        weights(in.weights.data<float>()),
        used(in.used ? in.used.data<std::int32_t>() : nullptr),
        rows(leading(inner.shape())),
        F(inner.shape().back()),
        is_gated(ops::is_gated(activation)) {}
  /// The place of a row's column before the activation.
  [[nodiscard]] __device__ Dim at(Dim row, Dim column) const {
    return row * (is_gated ? 2 * F : F) + column;
  }
};

template <class Function, class T>
struct WeightedForward {
  static constexpr int kWidth = kVector<T>;
  Weighted<T> in;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim row = i / in.F;
    if (row >= used_rows(in.used, in.rows)) return;
    const Dim from = in.at(row, i - row * in.F);
    float value[N];
    float up[N];
    load<N>(in.pre + from, value);
    if (in.is_gated) load<N>(in.pre + from + in.F, up);
    const float weight = in.weights[row];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      value[k] = weight * Function::at(value[k]).value * (in.is_gated ? up[k] : 1.0F);
    }
    store<N>(y + i, value);
  }
};

template <class T>
struct GradientCall {
  Weighted<T> in;
  const T* dy;
  T* dpre;      ///< may be in.pre
  float* dots;  ///< (rows, parts): the weights' gradients of parts of rows
  int parts;
};

/// Writes a lane's elements of dpre from `column` on and returns their part of the weight's
/// gradient. All are read before any is written, which may lie there.
template <int N, class Function, class T>
__device__ float weighted_gradient(const GradientCall<T>& call, Dim row, Dim column) {
  const Weighted<T>& in = call.in;
  const Dim at = in.at(row, column);
  float gate[N];
  float up[N];
  float dy[N];
  load<N>(in.pre + at, gate);
  if (in.is_gated) load<N>(in.pre + at + in.F, up);
  load<N>(call.dy + row * in.F + column, dy);
  const float weight = in.weights[row];
  float dot = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const ValueSlope f = Function::at(gate[k]);
    const float through = in.is_gated ? up[k] : 1.0F;
    dot += dy[k] * f.value * through;
    gate[k] = weight * dy[k] * through * f.slope;
    up[k] = weight * dy[k] * f.value;
  }
  store<N>(call.dpre + at, gate);
  if (in.is_gated) store<N>(call.dpre + at + in.F, up);
  return dot;
}

/// Warp: a part of a row.
template <int N, class Function, class T>
__global__ void __launch_bounds__(32 * kWarpsOfBlock)
    weighted_activation_backward_kernel(GradientCall<T> call) {
  overlap();
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Dim rows = used_rows(call.in.used, call.in.rows);
  const Dim stride = static_cast<Dim>(gridDim.x) * kWarpsOfBlock;
  for (Dim warp = static_cast<Dim>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / 32;
       warp < rows * call.parts; warp += stride) {
    const Dim row = warp / call.parts;
    const Dim first = (warp - row * call.parts) * 32 * kVector<T>;
    float dot = 0;
    for (int i = 0; i < kVector<T> / N; ++i) {
      const Dim column = first + (i * 32 + lane) * N;
      if (column < call.in.F) dot += weighted_gradient<N, Function>(call, row, column);
    }
    dot = warp_sum(dot);
    if (lane == 0) call.dots[warp] = dot;
  }
}

/// Adds up the parts of a row, in order.
struct WeightGradient {
  static constexpr int kWidth = 1;
  const float* dots;
  const std::int32_t* used;
  float* dweights;
  Dim rows;
  int parts;
  template <int N>
  __device__ void at(Dim row) const {
    if (row >= used_rows(used, rows)) return;
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += dots[row * parts + part];
    dweights[row] = sum;
  }
};

}  // namespace

void weighted_activation_forward(Context& ctx, Activation activation, const WeightedRows& in,
                                 View y) {
  constexpr const char* kName = "weighted_activation_forward";
  if (y.numel() == 0) return;
  with_element(y.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      const WeightedForward<Function, T> op = {{in, y, activation}, y.data<T>()};
      const bool vectors = op.in.F % kVector<T> == 0 && aligned(op.in.pre, op.y);
      for_each(ctx, kName, y, vectors, op);
    });
  });
}

void weighted_activation_backward(Context& ctx, Activation activation, const WeightedRows& in,
                                  CView dy, View dpre, View dweights) {
  constexpr const char* kName = "weighted_activation_backward";
  if (dweights.numel() == 0) return;
  with_element(dy.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      GradientCall<T> call = {
          {in, dy, activation}, dy.data<T>(), dpre.data<T>(), dweights.data<float>(), 1};
      const Dim rows = call.in.rows;
      const Dim F = call.in.F;
      const bool vectors = F % kVector<T> == 0 && aligned(call.in.pre, call.dy, call.dpre);
      call.parts = static_cast<int>(weighted_activation_parts(F, kVector<T>));
      if (call.parts > 1) {
        call.dots = static_cast<float*>(
            ctx.workspace(kName, weighted_activation_workspace(rows, F, kVector<T>)));
      }
      const auto kernel = vectors ? weighted_activation_backward_kernel<kVector<T>, Function, T>
                                  : weighted_activation_backward_kernel<1, Function, T>;
      const Dim blocks =
          std::min(kMostActivationBlocks, ceil_divide(rows * call.parts, kWarpsOfBlock));
      launch_waiting(ctx, kName, rows, kernel, {static_cast<unsigned>(blocks), 32 * kWarpsOfBlock},
                     call);
      if (call.parts == 1) return;
      const WeightGradient sums = {call.dots, call.in.used, dweights.data<float>(), rows,
                                   call.parts};
      for_each(ctx, kName, rows, rows, false, sums);
    });
  });
}

}  // namespace hyperslab::ops::cuda
