// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../backend.hpp"
#include "math.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// One chunk's sums, alone on its cache line.
struct alignas(64) LossSums {
  double loss = 0;
  double tokens = 0;
  double correct = 0;
};

void require_targets(std::span<const std::int32_t> targets, Dim V) {
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const std::int32_t target = targets[row];
    if (target != kIgnoredTarget && (target < 0 || target >= V)) {
      throw Error(ExitCode::data, "softmax_cross_entropy targets: row " + std::to_string(row) +
                                      " holds token " + std::to_string(target) +
                                      ", wanted less than " + std::to_string(V) +
                                      "; compare model.vocabulary with the token files");
    }
  }
}

template <class T>
T largest(const T* x, Dim count) {
  T result = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : result)
  for (Dim i = 0; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

/// The sum of e^(x - shift); with `store` the terms replace x.
template <class T>
T sum_of_exponentials(T* x, Dim count, T shift, bool store) {
  T sum = 0;
  if (store) {
#pragma omp simd reduction(+ : sum)
    for (Dim i = 0; i < count; ++i) {
      x[i] = exponential(x[i] - shift);
      sum += x[i];
    }
  } else {
#pragma omp simd reduction(+ : sum)
    for (Dim i = 0; i < count; ++i) sum += exponential(x[i] - shift);
  }
  return sum;
}

template <class T>
void loss_row(T* x, Dim V, std::int32_t target, bool gradient, T gradient_scale, LossSums& sums) {
  if (target == kIgnoredTarget) {
    if (gradient) std::fill_n(x, V, T(0));
    return;
  }
  const T top = largest(x, V);
  const T at_target = x[target];
  // Of equal largest logits the first is the answer.
  const bool correct = at_target == top && std::find(x, x + target, top) == x + target;
  const T sum = sum_of_exponentials(x, V, top, gradient);
  sums.loss += std::log(static_cast<double>(sum)) + static_cast<double>(top) -
               static_cast<double>(at_target);
  sums.tokens += 1;
  sums.correct += correct ? 1 : 0;
  if (!gradient) return;
  const T factor = gradient_scale / sum;
#pragma omp simd
  for (Dim i = 0; i < V; ++i) x[i] *= factor;
  x[target] -= gradient_scale;
}

}  // namespace

std::size_t softmax_cross_entropy_workspace(int threads) {
  return static_cast<std::size_t>(threads) * sizeof(LossSums);
}

void softmax_cross_entropy(Context& ctx, View logits, CView targets, const StepState* state,
                           WithGradient gradient, View sums) {
  const Dim N = logits.shape()[0];
  const Dim V = logits.shape()[1];
  require_targets(targets.span<std::int32_t>(), V);
  const int threads = ctx.threads();
  auto* partial = static_cast<LossSums*>(
      ctx.workspace("softmax_cross_entropy", softmax_cross_entropy_workspace(threads)));
  std::fill_n(partial, threads, LossSums());
  with_real(logits.dtype(), "softmax_cross_entropy", [&]<class T>(T) {
    T* x = logits.data<T>();
    const auto* target = targets.data<std::int32_t>();
    const bool with_gradient = gradient == WithGradient::yes;
    const T scale = with_gradient ? T(state->gradient_scale) : T(0);
    parallel_chunks(threads, N, 8 * V, [=](int chunk, Dim begin, Dim end) {
      LossSums chunk_sums;
      for (Dim row = begin; row < end; ++row) {
        loss_row(x + row * V, V, target[row], with_gradient, scale, chunk_sums);
      }
      partial[chunk] = chunk_sums;
    });
  });
  for (int chunk = 0; chunk < threads; ++chunk) {
    add_to_sums(sums, kSumLoss, partial[chunk].loss);
    add_to_sums(sums, kSumTokens, partial[chunk].tokens);
    add_to_sums(sums, kSumCorrect, partial[chunk].correct);
  }
}

}  // namespace hyperslab::ops::cpu
