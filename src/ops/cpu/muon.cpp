// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/muon.hpp"

#include <algorithm>
#include <cmath>

#include "../backend.hpp"
#include "../update_rules.hpp"
#include "gemm.hpp"
#include "parallel.hpp"
#include "reduction.hpp"

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

void muon_update(Context& ctx, float decay, DecayRule rule, const StepState* state,
                 const UpdateOperands& operands) {
  if (state->skip != 0) return;
  const View master = operands.master;
  with_real(master.dtype(), "muon_update", [&]<class T>(T) {
    T* x = master.data<T>();
    const T* direction = operands.gradient.data<T>();
    const T learning_rate = T(state->input.learning_rate);
    const bool cautious = rule == DecayRule::cautious;
    parallel_chunks(ctx.threads(), master.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) {
        x[i] -= learning_rate * (direction[i] + decay_of(x[i], direction[i], T(decay), cautious));
      }
    });
  });
  if (operands.value) cast(ctx, master, operands.value);
}

void normalize_matrices(Context& ctx, CView x, View y) {
  with_real(x.dtype(), "normalize_matrices", [&]<class T>(T) {
    for (Dim matrix = 0; matrix < x.shape()[0]; ++matrix) {
      const CView from = x.slice(matrix, 1);
      const double squares = sum_of_squares(ctx, "normalize_matrices", from.flat()).squares;
      const T norm = std::max(static_cast<T>(std::sqrt(squares)), T(kLeastNorm));
      const T* in = from.data<T>();
      T* out = y.slice(matrix, 1).data<T>();
      parallel_chunks(ctx.threads(), from.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
        for (Dim i = begin; i < end; ++i) out[i] = in[i] / norm;
      });
    }
  });
}

void matmul_gram(Context&, CView x, View gram) {
  const Dim side = gram.shape()[2];
  const bool wide = x.shape()[1] == side;
  const Dim K = x.shape()[wide ? 2 : 1];
  with_real(x.dtype(), "matmul_gram", [&]<class T>(T) {
    for (Dim matrix = 0; matrix < x.shape()[0]; ++matrix) {
      const T* in = x.slice(matrix, 1).data<T>();
      const Operand<T> left = {in, x.shape()[2], wide ? Trans::no : Trans::yes};
      const Operand<T> right = {in, x.shape()[2], wide ? Trans::yes : Trans::no};
      gemm<T>({side, side, K}, T(1), left, right, {gram.slice(matrix, 1).data<T>(), side, T(0)});
    }
  });
}

void matmul_add(Context& ctx, const ProductScales& scales, CView a, CView b, CView d, View c) {
  cast(ctx, d, c);
  const Dim K = a.shape()[2];
  with_real(a.dtype(), "matmul_add", [&]<class T>(T) {
    for (Dim matrix = 0; matrix < a.shape()[0]; ++matrix) {
      gemm<T>({c.shape()[1], c.shape()[2], K}, static_cast<T>(scales.product),
              {a.slice(matrix, 1).data<T>(), K}, {b.slice(matrix, 1).data<T>(), b.shape()[2]},
              {c.slice(matrix, 1).data<T>(), c.shape()[2], static_cast<T>(scales.addend)});
    }
  });
}

}  // namespace hyperslab::ops::cpu
