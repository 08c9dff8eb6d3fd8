// SPDX-License-Identifier: Apache-2.0
// Activations whose rows the router weighs.
#include "checks.hpp"
#include "cuda/tools/activation.cuh"
#include "used_rows.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kMostRowThreads = 256;
constexpr Dim kMostRowBlocks = Dim{1} << 20;

template <class T>
struct WeightedCall {
  const T* pre;
  const float* weights;
  const T* dy;               ///< backward alone
  T* out;                    ///< y, or dpre, which may be pre
  float* dweights;           ///< backward alone
  const std::int32_t* used;  ///< null: all rows
  Dim rows;
  int F;
  bool is_gated;
  [[nodiscard]] __device__ Dim pre_row(Dim row) const { return row * (is_gated ? 2 * F : F); }
};

/// Block: a row. kWidth: elements of an access.
template <int kWidth, class Function, class T>
__global__ void __launch_bounds__(kMostRowThreads)
    weighted_activation_kernel(WeightedCall<T> call) {
  overlap();
  wait_for_earlier();
  const Dim rows = used_rows(call.used, call.rows);
  for (Dim row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const pre = call.pre + call.pre_row(row);
    const float weight = call.weights[row];
    for (int i = static_cast<int>(threadIdx.x) * kWidth; i < call.F;
         i += static_cast<int>(blockDim.x) * kWidth) {
      float value[kWidth];
      float up[kWidth];
      load<kWidth>(pre + i, value);
      if (call.is_gated) load<kWidth>(pre + call.F + i, up);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        value[k] = weight * Function::at(value[k]).value * (call.is_gated ? up[k] : 1.0F);
      }
      store<kWidth>(call.out + row * call.F + i, value);
    }
  }
}

/// Writes a thread's elements of dpre from `i` on and returns their part of the weight's gradient.
/// All are read before any is written, which may lie there.
template <int kWidth, class Function, class T>
__device__ float weighted_gradient(const WeightedCall<T>& call, Dim row, float weight, int i) {
  const Dim at = call.pre_row(row) + i;
  float gate[kWidth];
  float up[kWidth];
  float dy[kWidth];
  load<kWidth>(call.pre + at, gate);
  if (call.is_gated) load<kWidth>(call.pre + at + call.F, up);
  load<kWidth>(call.dy + row * call.F + i, dy);
  float dot = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const ValueSlope f = Function::at(gate[k]);
    const float through = call.is_gated ? up[k] : 1.0F;
    dot += dy[k] * f.value * through;
    gate[k] = weight * dy[k] * through * f.slope;
    up[k] = weight * dy[k] * f.value;
  }
  store<kWidth>(call.out + at, gate);
  if (call.is_gated) store<kWidth>(call.out + at + call.F, up);
  return dot;
}

/// Block: a row.
template <int kWidth, class Function, class T>
__global__ void __launch_bounds__(kMostRowThreads)
    weighted_activation_backward_kernel(WeightedCall<T> call) {
  __shared__ float scratch[32];
  overlap();
  wait_for_earlier();
  const Dim rows = used_rows(call.used, call.rows);
  for (Dim row = blockIdx.x; row < rows; row += gridDim.x) {
    const float weight = call.weights[row];
    float dot = 0;
    for (int i = static_cast<int>(threadIdx.x) * kWidth; i < call.F;
         i += static_cast<int>(blockDim.x) * kWidth) {
      dot += weighted_gradient<kWidth, Function>(call, row, weight, i);
    }
    dot = block_sum(dot, scratch);
    if (threadIdx.x == 0) call.dweights[row] = dot;
  }
}

/// Blocks of as many whole warps as a row has vectors for.
Grid grid_of(Dim rows, Dim vectors) {
  const Dim warps = std::clamp<Dim>(ceil_divide(vectors, 32), 1, kMostRowThreads / 32);
  return {static_cast<unsigned>(std::min(rows, kMostRowBlocks)), static_cast<unsigned>(32 * warps)};
}

}  // namespace

void weighted_activation_forward(Context& ctx, Activation activation, CView pre, CView weights,
                                 View y, CView used) {
  constexpr const char* kName = "weighted_activation_forward";
  if (y.numel() == 0) return;
  with_element(y.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      WeightedCall<T> call = {};
      call.pre = pre.data<T>();
      call.weights = weights.data<float>();
      call.out = y.data<T>();
      call.used = used ? used.data<std::int32_t>() : nullptr;
      call.rows = leading(y.shape());
      call.F = static_cast<int>(y.shape().back());
      call.is_gated = is_gated(activation);
      const bool vectors = call.F % kVector<T> == 0 && aligned(call.pre, call.out);
      const auto kernel = vectors ? weighted_activation_kernel<kVector<T>, Function, T>
                                  : weighted_activation_kernel<1, Function, T>;
      launch_waiting(ctx, kName, call.rows, kernel,
                     grid_of(call.rows, vectors ? call.F / kVector<T> : call.F), call);
    });
  });
}

void weighted_activation_backward(Context& ctx, Activation activation, CView pre, CView weights,
                                  CView dy, View dpre, View dweights, CView used) {
  constexpr const char* kName = "weighted_activation_backward";
  if (dweights.numel() == 0) return;
  with_element(dy.dtype(), kName, [&]<class T>(T) {
    with_activation<sizeof(T) == 2>(activation, [&]<class Function>(Function) {
      WeightedCall<T> call = {};
      call.pre = pre.data<T>();
      call.weights = weights.data<float>();
      call.dy = dy.data<T>();
      call.out = dpre.data<T>();
      call.dweights = dweights.data<float>();
      call.used = used ? used.data<std::int32_t>() : nullptr;
      call.rows = leading(dy.shape());
      call.F = static_cast<int>(dy.shape().back());
      call.is_gated = is_gated(activation);
      const bool vectors = call.F % kVector<T> == 0 && aligned(call.pre, call.dy, call.out);
      const auto kernel = vectors ? weighted_activation_backward_kernel<kVector<T>, Function, T>
                                  : weighted_activation_backward_kernel<1, Function, T>;
      launch_waiting(ctx, kName, call.rows, kernel,
                     grid_of(call.rows, vectors ? call.F / kVector<T> : call.F), call);
    });
  });
}

}  // namespace hyperslab::ops::cuda
