// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "../backend.hpp"
#include "../checks.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// Elements of one chunk's sums of both gradients.
Dim head_partial_stride(Dim width) { return round_up(2 * width, 16); }

/// x and y may be the same row.
template <class T>
T normalize(const T* x, Dim width, T eps, const T* weight, T* y) {
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (Dim i = 0; i < width; ++i) squares += x[i] * x[i];
  const T rstd = T(1) / std::sqrt(squares / static_cast<T>(width) + eps);
#pragma omp simd
  for (Dim i = 0; i < width; ++i) y[i] = x[i] * rstd * weight[i];
  return rstd;
}

/// dy -> dx in place; adds to dweight.
template <class T>
void backward_one_head(const T* x, T rstd, Dim width, const T* weight, T* d, T* dweight) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (Dim i = 0; i < width; ++i) {
    const T normalized = x[i] * rstd;
    dweight[i] += d[i] * normalized;
    dot += d[i] * weight[i] * normalized;
  }
  const T mean = dot / static_cast<T>(width);
#pragma omp simd
  for (Dim i = 0; i < width; ++i) d[i] = rstd * (d[i] * weight[i] - x[i] * rstd * mean);
}

}  // namespace

std::size_t head_norm_workspace(int threads, Dim head_width, DType dtype) {
  return static_cast<std::size_t>(threads * head_partial_stride(head_width)) *
         size_of(statistic_dtype(dtype));
}

void head_norm_forward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                       View qkv, const HeadNormSaved& saved) {
  with_real(qkv.dtype(), "head_norm_forward", [&]<class T>(T) {
    const Dim width = layout.head_width;
    const Dim heads = layout.heads + layout.kv_heads;
    const Dim packed = layout.packed_width();
    T* const kept = optional_data<T>(saved.heads);
    T* const rstds = optional_data<T>(saved.rstd);
    const auto rows = [&](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        T* const x = qkv.data<T>() + row * packed;
        if (kept != nullptr) std::copy_n(x, heads * width, kept + row * heads * width);
        for (Dim head = 0; head < heads; ++head) {
          const T* weight = head < layout.heads ? weights.query.data<T>() : weights.key.data<T>();
          T* const own = x + head * width;
          const T rstd = normalize(own, width, static_cast<T>(weights.eps), weight, own);
          if (rstds != nullptr) rstds[row * heads + head] = rstd;
        }
      }
    };
    parallel_chunks(ctx.threads(), leading(qkv.shape()), 3 * heads * width, rows);
  });
}

void head_norm_backward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                        const HeadNormSaved& saved, View dqkv, const HeadNormGradients& gradients) {
  with_real(dqkv.dtype(), "head_norm_backward", [&]<class T>(T) {
    const Dim width = layout.head_width;
    const Dim heads = layout.heads + layout.kv_heads;
    const Dim stride = head_partial_stride(width);
    const int threads = ctx.threads();
    auto* partial = static_cast<T*>(
        ctx.workspace("head_norm_backward", head_norm_workspace(threads, width, dqkv.dtype())));
    std::fill_n(partial, threads * stride, T(0));
    const auto rows = [&](int chunk, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        for (Dim head = 0; head < heads; ++head) {
          const bool is_query = head < layout.heads;
          backward_one_head(saved.heads.data<T>() + (row * heads + head) * width,
                            saved.rstd.data<T>()[row * heads + head], width,
                            is_query ? weights.query.data<T>() : weights.key.data<T>(),
                            dqkv.data<T>() + row * layout.packed_width() + head * width,
                            partial + chunk * stride + (is_query ? 0 : width));
        }
      }
    };
    parallel_chunks(threads, leading(dqkv.shape()), 4 * heads * width, rows);
    if (!gradients.query) return;  // frozen
    const std::array<T*, 2> out = {gradients.query.data<T>(), gradients.key.data<T>()};
    for (Dim i = 0; i < 2 * width; ++i) {
      T total = 0;
      for (int chunk = 0; chunk < threads; ++chunk) total += partial[chunk * stride + i];
      T& sum = out[i < width ? 0 : 1][i % width];
      sum = gradients.accumulate == Accumulate::yes ? sum + total : total;
    }
  });
}

}  // namespace hyperslab::ops::cpu
