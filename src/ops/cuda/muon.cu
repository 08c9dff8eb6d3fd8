// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/muon.hpp"
#include "kernels_common.cuh"

namespace hyperslab::ops::cuda {
namespace {

struct MuonDirection {
  static constexpr int kWidth = 4;
  float momentum;
  const StepState* state;
  const float* gradient;
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
  float scale;
  float decay;
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
    for (int k = 0; k < N; ++k) x[k] -= learning_rate * (scale * d[k] + decay * x[k]);
    store<N>(master + i, x);
    if (value != nullptr) store<N>(value + i, x);
  }
};

struct Scale {
  static constexpr int kWidth = 4;
  float scale;
  const float* x;
  float* y;

  template <int N>
  __device__ void at(Dim i) const {
    float values[N];
    load<N>(x + i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] *= scale;
    store<N>(y + i, values);
  }
};

struct DivideByNorm {
  static constexpr int kWidth = 4;
  const float* sums;
  float* x;

  template <int N>
  __device__ void at(Dim i) const {
    float values[N];
    load<N>(x + i, values);
    const float norm = fmaxf(sqrtf(sums[kSumNormSquared]), kLeastNorm);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] /= norm;
    store<N>(x + i, values);
  }
};

}  // namespace

void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction) {
  const MuonDirection op = {momentum, state, gradient.data<float>(), average.data<float>(),
                            direction.data<float>()};
  for_each(ctx, "muon_direction", gradient.numel(), aligned(op.gradient, op.average, op.direction),
           op);
}

void muon_update(Context& ctx, float scale, float decay, const StepState* state,
                 const UpdateOperands& operands) {
  const View value = operands.value;
  with_element(value ? value.dtype() : DType::f32, "muon_update", [&]<class V>(V) {
    const MuonUpdate<V> op = {scale,
                              decay,
                              state,
                              operands.master.data<float>(),
                              operands.gradient.data<float>(),
                              optional_data<V>(value)};
    const bool vectors = aligned(op.master, op.direction) &&
                         reinterpret_cast<std::uintptr_t>(op.value) % (4 * sizeof(V)) == 0;
    for_each(ctx, "muon_update", operands.master.numel(), vectors, op);
  });
}

void scale(Context& ctx, float scale, CView x, View y) {
  const Scale op = {scale, x.data<float>(), y.data<float>()};
  for_each(ctx, "scale", x.numel(), aligned(op.x, op.y), op);
}

void divide_by_norm(Context& ctx, CView sums, View x) {
  const DivideByNorm op = {sums.data<float>(), x.data<float>()};
  for_each(ctx, "divide_by_norm", x.numel(), aligned(op.x), op);
}

}  // namespace hyperslab::ops::cuda
