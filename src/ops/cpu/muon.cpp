// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/muon.hpp"

#include <algorithm>
#include <cmath>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction) {
  if (state->skip != 0) return fill(ctx, 0, direction);
  with_real(gradient.dtype(), "muon_direction", [&]<class T>(T) {
    const T* in = gradient.data<T>();
    T* mean = average.data<T>();
    T* out = direction.data<T>();
    const T keep = T(momentum);
    const T clip_scale = T(state->clip_scale);
    parallel_chunks(ctx.threads(), gradient.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) {
        const T g = in[i] * clip_scale;
        mean[i] = keep * mean[i] + (T(1) - keep) * g;
        out[i] = keep * mean[i] + (T(1) - keep) * g;
      }
    });
  });
}

void muon_update(Context& ctx, float scale, float decay, const StepState* state,
                 const UpdateOperands& operands) {
  if (state->skip != 0) return;
  const View master = operands.master;
  with_real(master.dtype(), "muon_update", [&]<class T>(T) {
    T* x = master.data<T>();
    const T* direction = operands.gradient.data<T>();
    const T learning_rate = T(state->input.learning_rate);
    parallel_chunks(ctx.threads(), master.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) {
        x[i] -= learning_rate * (T(scale) * direction[i] + T(decay) * x[i]);
      }
    });
  });
  if (operands.value) cast(ctx, master, operands.value);
}

void scale(Context& ctx, float scale, CView x, View y) {
  with_real(x.dtype(), "scale", [&]<class T>(T) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_chunks(ctx.threads(), x.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) out[i] = T(scale) * in[i];
    });
  });
}

void divide_by_norm(Context& ctx, CView sums, View x) {
  with_real(x.dtype(), "divide_by_norm", [&]<class T>(T) {
    T* data = x.data<T>();
    const T norm = std::max(std::sqrt(sums.data<T>()[kSumNormSquared]), T(kLeastNorm));
    parallel_chunks(ctx.threads(), x.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) data[i] /= norm;
    });
  });
}

}  // namespace hyperslab::ops::cpu
