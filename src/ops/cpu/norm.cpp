// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "../backend.hpp"
#include "../checks.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

template <class T>
struct RowStatistics {
  T mean;
  T rstd;
};

/// Mean first and deviations second: the row is in the nearest cache, and no digits cancel.
template <class T>
RowStatistics<T> layernorm_statistics(const T* x, Dim C, T eps) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (Dim i = 0; i < C; ++i) total += x[i];
  const T mean = total / static_cast<T>(C);
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Dim i = 0; i < C; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, T(1) / std::sqrt(squares / static_cast<T>(C) + eps)};
}

template <class T>
RowStatistics<T> rmsnorm_statistics(const T* x, Dim C, T eps) {
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Dim i = 0; i < C; ++i) squares += x[i] * x[i];
  return {T(0), T(1) / std::sqrt(squares / static_cast<T>(C) + eps)};
}

/// The pointers of one row of the forward pass; absent ones are null.
template <class T>
struct ForwardRow {
  const T* residual;
  const T* delta;
  T* sum;
  T* y;
};

/// sum = residual + delta; returns the row that the statistics read.
template <class T>
const T* add_row(const ForwardRow<T>& row, Dim C) {
  if (row.sum == nullptr) return row.residual;
  if (row.delta != nullptr) {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) row.sum[i] = row.residual[i] + row.delta[i];
  } else if (row.sum != row.residual) {
    std::copy_n(row.residual, C, row.sum);
  }
  return row.sum;
}

template <class T>
void normalize_row(const T* x, Dim C, RowStatistics<T> s, const T* weight, const T* bias, T* y) {
  if (bias != nullptr) {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) y[i] = (x[i] - s.mean) * s.rstd * weight[i] + bias[i];
  } else {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) y[i] = (x[i] - s.mean) * s.rstd * weight[i];
  }
}

/// The pointers of one row of the backward pass.
template <class T>
struct BackwardRow {
  const T* dy;
  const T* x;
  T* dx;
};

/// One chunk's sums over rows, of C columns each; all but the first may be null.
template <class T>
struct ColumnSums {
  T* dweight;
  T* dbias;
  T* arriving;
  T* leaving;
};

template <class T, bool kCentered>
void backward_row(const BackwardRow<T>& row, const T* weight, RowStatistics<T> s, Dim C,
                  bool accumulate, ColumnSums<T> sums) {
  // No structured binding: Clang 16 cannot capture one in a region of OpenMP.
  const T* const dy = row.dy;
  const T* const x = row.x;
  T* const dx = row.dx;
  T dot = 0;
  T total = 0;
#pragma omp simd reduction(+ : dot, total)
  for (Dim i = 0; i < C; ++i) {
    const T normalized = (x[i] - s.mean) * s.rstd;
    const T g = dy[i] * weight[i];
    dot += g * normalized;
    total += g;
    sums.dweight[i] += dy[i] * normalized;
  }
  if (sums.dbias != nullptr) {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) sums.dbias[i] += dy[i];
  }
  const T mean_dot = dot / static_cast<T>(C);
  const T mean_g = kCentered ? total / static_cast<T>(C) : T(0);
  const auto gradient = [=](Dim i) {
    const T normalized = (x[i] - s.mean) * s.rstd;
    return s.rstd * (dy[i] * weight[i] - mean_g - normalized * mean_dot);
  };
  if (sums.arriving != nullptr) {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) {
      sums.arriving[i] += dx[i];
      dx[i] += gradient(i);
      sums.leaving[i] += dx[i];
    }
  } else if (accumulate) {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) dx[i] += gradient(i);
  } else {
#pragma omp simd
    for (Dim i = 0; i < C; ++i) dx[i] = gradient(i);
  }
}

/// out (+)= partial[0] + partial[1] + ..., in this order; `stride` elements from one to the next.
template <class T>
void sum_partials(const T* partial, int chunks, Dim stride, Dim C, Accumulate accumulate, T* out) {
  for (Dim i = 0; i < C; ++i) {
    T total = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) total += partial[chunk * stride + i];
    out[i] = accumulate == Accumulate::yes ? out[i] + total : total;
  }
}

/// Elements of one chunk's ColumnSums.
Dim partial_stride(Dim C) { return round_up(4 * C, 16); }

template <class T>
void copy_or_add(int threads, Dim count, const T* dy, Accumulate accumulate, T* dsum) {
  parallel_chunks(threads, count, 1, [=](int, Dim begin, Dim end) {
    if (accumulate == Accumulate::yes) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) dsum[i] += dy[i];
    } else if (dsum != dy) {
      std::copy(dy + begin, dy + end, dsum + begin);
    }
  });
}

}  // namespace

std::size_t norm_backward_workspace(int threads, Dim width, DType dtype) {
  return static_cast<std::size_t>(threads * partial_stride(width)) *
         size_of(statistic_dtype(dtype));
}

void add_norm_forward(Context& ctx, NormKind kind, const NormOperands& operands,
                      const NormResults& results) {
  with_real(operands.residual.dtype(), "add_norm_forward", [&]<class T>(T) {
    const Dim C = operands.residual.shape().back();
    const ForwardRow<T> first = {operands.residual.data<T>(), optional_data<T>(operands.delta),
                                 optional_data<T>(results.sum), results.y.data<T>()};
    const T* w = optional_data<T>(operands.weight);
    const T* b = kind == NormKind::layernorm ? optional_data<T>(operands.bias) : nullptr;
    T* means = kind == NormKind::layernorm ? results.mean.data<T>() : nullptr;
    T* rstds = kind == NormKind::none ? nullptr : results.rstd.data<T>();
    const auto rows = [&](int, Dim begin, Dim end) {
      for (Dim r = begin; r < end; ++r) {
        const T* x =
            add_row<T>({first.residual + r * C, first.delta ? first.delta + r * C : nullptr,
                        first.sum ? first.sum + r * C : nullptr, nullptr},
                       C);
        T* out = first.y + r * C;
        if (kind == NormKind::none) {
          if (out != x) std::copy_n(x, C, out);
          continue;
        }
        const auto statistics = kind == NormKind::layernorm
                                    ? layernorm_statistics(x, C, static_cast<T>(operands.eps))
                                    : rmsnorm_statistics(x, C, static_cast<T>(operands.eps));
        if (means != nullptr) means[r] = statistics.mean;
        rstds[r] = statistics.rstd;
        normalize_row(x, C, statistics, w, b, out);
      }
    };
    parallel_chunks(ctx.threads(), leading(operands.residual.shape()), 4 * C, rows);
  });
}

void norm_backward(Context& ctx, NormKind kind, CView dy, const NormSaved& saved,
                   const NormGradients& gradients) {
  with_real(dy.dtype(), "norm_backward", [&]<class T>(T) {
    if (kind == NormKind::none) {
      return copy_or_add(ctx.threads(), dy.numel(), dy.data<T>(), gradients.accumulate_input,
                         gradients.dsum.data<T>());
    }
    const Dim C = dy.shape().back();
    const Dim stride = partial_stride(C);
    const int threads = ctx.threads();
    auto* partial = static_cast<T*>(
        ctx.workspace("norm_backward", norm_backward_workspace(threads, C, dy.dtype())));
    std::fill_n(partial, threads * stride, T(0));
    const bool centered = kind == NormKind::layernorm;
    const T* means = centered ? saved.mean.data<T>() : nullptr;
    const bool with_bias = centered && gradients.dbias;
    const auto with_stream = static_cast<bool>(gradients.arriving_sums);
    const auto rows = [&](int chunk, Dim begin, Dim end) {
      T* own = partial + chunk * stride;
      const ColumnSums<T> sums = {own, with_bias ? own + C : nullptr,
                                  with_stream ? own + 2 * C : nullptr,
                                  with_stream ? own + 3 * C : nullptr};
      const auto backward = centered ? backward_row<T, true> : backward_row<T, false>;
      for (Dim r = begin; r < end; ++r) {
        backward(
            {dy.data<T>() + r * C, saved.sum.data<T>() + r * C, gradients.dsum.data<T>() + r * C},
            saved.weight.data<T>(), {means ? means[r] : T(0), saved.rstd.data<T>()[r]}, C,
            gradients.accumulate_input == Accumulate::yes, sums);
      }
    };
    parallel_chunks(threads, leading(dy.shape()), 4 * C, rows);
    if (!gradients.dweight) return;  // frozen
    const auto finish = [&](Dim slot, View out) {
      sum_partials(partial + slot * C, threads, stride, C, gradients.accumulate_weight,
                   out.data<T>());
    };
    finish(0, gradients.dweight);
    if (with_bias) finish(1, gradients.dbias);
    if (!with_stream) return;
    finish(2, gradients.arriving_sums);
    finish(3, gradients.leaving_sums);
  });
}

}  // namespace hyperslab::ops::cpu
