// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/tools/common.cuh"
#include "hyperslab/ops/muon.hpp"
#include "update_rules.hpp"

namespace hyperslab::ops::cuda {
namespace {

/// G is the dtype of the gradient.
template <class G>
struct MuonDirection {
  static constexpr int kWidth = 4;
  float momentum;
  const StepState* state;
  const G* gradient;
  float* average;
  float* direction;

  template <int N>
  __device__ void at(Dim i) const {
    float g[N];
    float mean[N];
    load<N>(gradient + i, g);
    load<N>(average + i, mean);
    const bool skip = state->skip != 0;
    const float clip_scale = state->clip_scale;
    const float rest = 1.0F - momentum;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      g[k] *= clip_scale;
      if (!skip) mean[k] = momentum * mean[k] + rest * g[k];
      g[k] = skip ? 0.0F : momentum * mean[k] + rest * g[k];
    }
    store<N>(average + i, mean);
    store<N>(direction + i, g);
  }
};

/// V is the dtype of the compute copy, which may be absent.
template <class V>
struct MuonUpdate {
  static constexpr int kWidth = 4;
  float decay;
  bool cautious;
  const StepState* state;
  float* master;
  const float* direction;
  V* value;

  template <int N>
  __device__ void at(Dim i) const {
    if (state->skip != 0) return;
    float x[N];
    float d[N];
    load<N>(master + i, x);
    load<N>(direction + i, d);
    const float learning_rate = state->input.learning_rate;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] -= learning_rate * (d[k] + decay_of(x[k], d[k], decay, cautious));
    }
    store<N>(master + i, x);
    if (value != nullptr) store<N>(value + i, x);
  }
};

/// Block (x, y) sums the x-th part of the squares of matrix y, which has `count` elements.
template <int N>
__global__ void __launch_bounds__(256)
    matrix_squares_kernel(const float* x, Dim count, double* partial) {
  __shared__ double scratch[32];
  const float* matrix = x + blockIdx.y * count;
  const Dim first = static_cast<Dim>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Dim stride = static_cast<Dim>(gridDim.x) * blockDim.x;
  double squares = 0;
#pragma unroll 4
  for (Dim v = first; v < count / N; v += stride) {
    float value[N];
    load<N>(matrix + v * N, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      squares += static_cast<double>(value[i]) * static_cast<double>(value[i]);
    }
  }
  squares = block_sum(squares, scratch);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = squares;
}

/// Block (x, y) divides the x-th part of matrix y by its norm.
template <int N, class T>
__global__ void __launch_bounds__(256)
    normalize_kernel(const float* x, Dim count, const double* partial, T* y) {
  double squares = 0;
#pragma unroll
  for (int part = static_cast<int>(threadIdx.x % 32); part < kMatrixNormParts; part += 32) {
    squares += partial[blockIdx.y * kMatrixNormParts + part];
  }
  const float norm = fmaxf(static_cast<float>(sqrt(warp_sum(squares))), kLeastNorm);
  const float* from = x + blockIdx.y * count;
  T* to = y + blockIdx.y * count;
  const Dim first = static_cast<Dim>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Dim stride = static_cast<Dim>(gridDim.x) * blockDim.x;
  for (Dim v = first; v < count / N; v += stride) {
    float value[N];
    load<N>(from + v * N, value);
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] /= norm;
    store<N>(to + v * N, value);
  }
}

template <int N, class T>
void normalize(Context& ctx, CView x, View y) {
  constexpr const char* kName = "normalize_matrices";
  const Dim batch = x.shape()[0];
  const Dim count = x.numel() / batch;
  auto* partial = static_cast<double*>(ctx.workspace(kName, normalize_matrices_workspace(batch)));
  const auto matrices = static_cast<unsigned>(batch);
  const float* from = x.data<float>();
  const auto blocks = static_cast<unsigned>(std::clamp<Dim>(ceil_divide(count / N, 1024), 1, 1024));
  matrix_squares_kernel<N>
      <<<dim3(kMatrixNormParts, matrices), 256, 0, ctx.stream().cuda()>>>(from, count, partial);
  check_launch(kName);
  normalize_kernel<N>
      <<<dim3(blocks, matrices), 256, 0, ctx.stream().cuda()>>>(from, count, partial, y.data<T>());
  check_launch(kName);
}

}  // namespace

void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction) {
  with_gradient(gradient, [&]<class G>(const G* of_gradient) {
    const MuonDirection<G> op = {momentum, state, of_gradient, average.data<float>(),
                                 direction.data<float>()};
    for_each(ctx, "muon_direction", gradient, aligned(op.gradient, op.average, op.direction), op);
  });
}

void muon_update(Context& ctx, float decay, DecayRule rule, const StepState* state,
                 const UpdateOperands& operands) {
  const View value = operands.value;
  with_element(value ? value.dtype() : DType::f32, "muon_update", [&]<class V>(V) {
    const MuonUpdate<V> op = {decay,
                              rule == DecayRule::cautious,
                              state,
                              operands.master.data<float>(),
                              operands.gradient.data<float>(),
                              optional_data<V>(value)};
    const bool vectors = aligned(op.master, op.direction) &&
                         reinterpret_cast<std::uintptr_t>(op.value) % (4 * sizeof(V)) == 0;
    for_each(ctx, "muon_update", operands.master, vectors, op);
  });
}

void normalize_matrices(Context& ctx, CView x, View y) {
  if (x.numel() == 0) return;
  const Dim count = x.numel() / x.shape()[0];
  with_element(y.dtype(), "normalize_matrices", [&]<class T>(T) {
    const bool vectors = count % 4 == 0 && aligned(x.data<float>()) &&
                         reinterpret_cast<std::uintptr_t>(y.raw()) % (4 * sizeof(T)) == 0;
    vectors ? normalize<4, T>(ctx, x, y) : normalize<1, T>(ctx, x, y);
  });
}

}  // namespace hyperslab::ops::cuda
