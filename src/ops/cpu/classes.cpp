// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/classes.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// The terms that one row adds to the sums.
struct ClassLoss {
  double loss = 0;
  std::int32_t counts = 0;
  std::int32_t correct = 0;
  std::int32_t correct5 = 0;
};

void require_labels(std::span<const std::int32_t> labels, Dim classes) {
  for (std::size_t i = 0; i < labels.size(); i += 2) {
    if (labels[i] == kIgnoredTarget) continue;
    for (const std::size_t k : {i, i + 1}) {
      if (labels[k] >= 0 && labels[k] < classes) continue;
      throw Error(ExitCode::data, "class_cross_entropy labels: row " + std::to_string(i / 2) +
                                      " holds label " + std::to_string(labels[k]) +
                                      ", expected less than " + std::to_string(classes) +
                                      "; compare model.classes with the images");
    }
  }
}

/// Logits before `label` in the order of size, of equal ones the first first.
template <class T>
Dim place_of(const T* x, Dim classes, std::int32_t label) {
  Dim before = 0;
  for (Dim i = 0; i < classes; ++i) before += x[i] > x[label] || (x[i] == x[label] && i < label);
  return before;
}

template <class T>
ClassLoss one_row(T* x, Dim classes, const std::int32_t* labels, T weight, T smoothing,
                  const T* scale) {
  const std::int32_t main = weight >= T(0.5) ? labels[0] : labels[1];
  const Dim place = place_of(x, classes, main);
  const T largest = *std::max_element(x, x + classes);
  T exponentials = 0;
  T sum = 0;
  for (Dim i = 0; i < classes; ++i) {
    exponentials += std::exp(x[i] - largest);
    sum += x[i];
  }
  const T log_total = largest + std::log(exponentials);
  const T target = weight * x[labels[0]] + (T(1) - weight) * x[labels[1]];
  const T even = sum / static_cast<T>(classes);
  const ClassLoss out = {
      static_cast<double>(log_total - (T(1) - smoothing) * target - smoothing * even), 1,
      place == 0, place < 5};
  if (scale == nullptr) return out;
  const T share = smoothing / static_cast<T>(classes);
  const T factor = *scale / exponentials;
  for (Dim i = 0; i < classes; ++i) x[i] = std::exp(x[i] - largest) * factor - share * *scale;
  x[labels[0]] -= (T(1) - smoothing) * weight * *scale;
  x[labels[1]] -= (T(1) - smoothing) * (T(1) - weight) * *scale;
  return out;
}

}  // namespace

void patch_tokens_forward(Context& ctx, CView patches, CView class_token, CView positions, View y) {
  with_real(y.dtype(), "patch_tokens_forward", [&]<class T>(T) {
    const auto [B, tokens, C] = y.dims<3>("patch_tokens_forward y");
    const Dim first = class_token ? 1 : 0;
    const Dim N = tokens - first;
    const T* at = optional_data<T>(positions);
    const auto rows = [&, tokens = tokens, C = C](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        const Dim t = row % tokens;
        const T* from = t < first ? class_token.data<T>()
                                  : patches.data<T>() + ((row / tokens) * N + t - first) * C;
        T* to = y.data<T>() + row * C;
        for (Dim c = 0; c < C; ++c) to[c] = from[c] + (at == nullptr ? T(0) : at[t * C + c]);
      }
    };
    parallel_chunks(ctx.threads(), B * tokens, C, rows);
  });
}

void patch_tokens_backward(Context& ctx, CView dy, Accumulate accumulate, View dpatches,
                           View dclass_token, View dpositions) {
  with_real(dy.dtype(), "patch_tokens_backward", [&]<class T>(T) {
    const auto [B, tokens, C] = dy.dims<3>("patch_tokens_backward dy");
    const Dim N = dpatches.shape()[1];
    const Dim first = tokens - N;
    const auto rows = [&, B = B, tokens = tokens, C = C](int, Dim begin, Dim end) {
      for (Dim t = begin; t < end; ++t) {
        T* const sums = dpositions ? dpositions.data<T>() + t * C : nullptr;
        T* const token = dclass_token && t < first ? dclass_token.data<T>() : nullptr;
        for (T* const to : {sums, token}) {
          if (to != nullptr && accumulate == Accumulate::no) std::fill_n(to, C, T(0));
        }
        for (Dim b = 0; b < B; ++b) {
          const T* from = dy.data<T>() + (b * tokens + t) * C;
          if (t >= first) std::copy_n(from, C, dpatches.data<T>() + (b * N + t - first) * C);
          for (T* const to : {sums, token}) {
            for (Dim c = 0; to != nullptr && c < C; ++c) to[c] += from[c];
          }
        }
      }
    };
    parallel_chunks(ctx.threads(), tokens, B * C, rows);
  });
}

void sincos2d_table(Context& /*ctx*/, Dim grid, View table) {
  with_real(table.dtype(), "sincos2d_table", [&]<class T>(T) {
    const auto [tokens, C] = table.dims<2>("sincos2d_table table");
    const Dim first = tokens - grid * grid;
    const Dim w = C / 4;
    for (Dim t = 0; t < tokens; ++t) {
      for (Dim c = 0; c < C; ++c) {
        double value = 0;
        if (t >= first) {
          const Dim place = c < 2 * w ? (t - first) % grid : (t - first) / grid;
          const double angle =
              static_cast<double>(place) *
              std::pow(10000.0, -static_cast<double>(c % w) / static_cast<double>(w));
          value = c / w % 2 == 0 ? std::sin(angle) : std::cos(angle);
        }
        table.data<T>()[t * C + c] = static_cast<T>(value);
      }
    }
  });
}

void pool_rows_forward(Context& ctx, const PooledRows& rows, CView residual, CView delta,
                       View pooled) {
  with_real(residual.dtype(), "pool_rows_forward", [&]<class T>(T) {
    const Dim C = residual.shape().back();
    const Dim end = rows.first + residual.numel() / std::max<Dim>(1, C);
    const T* const add = optional_data<T>(delta);
    const auto samples = [&](int, Dim b_begin, Dim b_end) {
      for (Dim b = b_begin; b < b_end; ++b) {
        T* const to = pooled.data<T>() + b * C;
        std::fill_n(to, C, T(0));
        for (Dim t = 0; t < rows.pooled(); ++t) {
          const Dim row = b * rows.T + t;
          if (row < rows.first || row >= end) continue;
          const Dim at = (row - rows.first) * C;
          for (Dim c = 0; c < C; ++c) {
            to[c] += residual.data<T>()[at + c] + (add == nullptr ? T(0) : add[at + c]);
          }
        }
        for (Dim c = 0; c < C; ++c) to[c] /= static_cast<T>(rows.pooled());
      }
    };
    parallel_chunks(ctx.threads(), rows.B, rows.pooled() * C, samples);
  });
}

void pool_rows_backward(Context& ctx, const PooledRows& rows, CView dpooled, View dx) {
  with_real(dx.dtype(), "pool_rows_backward", [&]<class T>(T) {
    const Dim C = dx.shape().back();
    const auto each = [&](int, Dim begin, Dim end) {
      for (Dim i = begin; i < end; ++i) {
        const Dim row = rows.first + i;
        const T* from = dpooled.data<T>() + row / rows.T * C;
        T* to = dx.data<T>() + i * C;
        const bool is_pooled = row % rows.T < rows.pooled();
        for (Dim c = 0; c < C; ++c) {
          to[c] = is_pooled ? from[c] / static_cast<T>(rows.pooled()) : T(0);
        }
      }
    };
    parallel_chunks(ctx.threads(), dx.numel() / std::max<Dim>(1, C), C, each);
  });
}

std::size_t class_cross_entropy_workspace(Dim rows) {
  return static_cast<std::size_t>(rows) * sizeof(ClassLoss);
}

void class_cross_entropy(Context& ctx, const ClassRows& rows, double smoothing,
                         const StepState* state, WithGradient gradient, View sums) {
  require_labels(rows.labels.flat().span<std::int32_t>(), rows.classes);
  with_real(rows.logits.dtype(), "class_cross_entropy", [&]<class T>(T) {
    const auto [B, columns] = rows.logits.dims<2>("class_cross_entropy logits");
    const bool writes = gradient == WithGradient::yes;
    const T scale = writes ? T(state->gradient_scale) : T(0);
    auto* losses = static_cast<ClassLoss*>(
        ctx.workspace("class_cross_entropy", class_cross_entropy_workspace(B)));
    const auto each = [&, columns = columns](int, Dim begin, Dim end) {
      for (Dim b = begin; b < end; ++b) {
        T* const x = rows.logits.data<T>() + b * columns;
        const std::int32_t* labels = rows.labels.data<std::int32_t>() + 2 * b;
        const bool counts = labels[0] != kIgnoredTarget;
        losses[b] = {};
        if (counts) {
          losses[b] = one_row(x, rows.classes, labels, T(rows.weights.data<float>()[b]),
                              T(smoothing), writes ? &scale : nullptr);
        }
        if (writes) std::fill(x + (counts ? rows.classes : 0), x + columns, T(0));
      }
    };
    parallel_chunks(ctx.threads(), B, 8 * columns, each);
    ClassLoss total;
    for (Dim b = 0; b < B; ++b) {
      total.loss += losses[b].loss;
      total.counts += losses[b].counts;
      total.correct += losses[b].correct;
      total.correct5 += losses[b].correct5;
    }
    add_to_sums(sums, kSumLoss, total.loss);
    add_to_sums(sums, kSumTokens, total.counts);
    add_to_sums(sums, kSumWeights, total.counts);
    add_to_sums(sums, kSumCorrect, total.correct);
    add_to_sums(sums, kSumCorrect5, total.correct5);
  });
}

}  // namespace hyperslab::ops::cpu
