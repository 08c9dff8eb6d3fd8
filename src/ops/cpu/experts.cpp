// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../backend.hpp"
#include "activation_functions.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

template <class Function, class T>
void weighted_row(bool gated, Dim F, const T* pre, T weight, T* y) {
  const T* up = pre + F;
#pragma omp simd
  for (Dim i = 0; i < F; ++i) {
    const T value = Function::at(pre[i]).value;
    y[i] = weight * (gated ? value * up[i] : value);
  }
}

/// Returns the gradient of the weight. dpre may be pre.
template <class Function, class T>
T weighted_row_gradient(bool gated, Dim F, const T* pre, T weight, const T* dy, T* dpre) {
  const T* up = pre + F;
  T* dup = dpre + F;
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (Dim i = 0; i < F; ++i) {
    const auto [value, slope] = Function::at(pre[i]);
    const T through = gated ? up[i] : T(1);
    dot += dy[i] * value * through;
    const T dgate = weight * dy[i] * through * slope;
    if (gated) dup[i] = weight * dy[i] * value;
    dpre[i] = dgate;
  }
  return dot;
}

/// Rows that are used, of so many.
Dim rows_of(CView used, Dim rows) {
  if (!used) return rows;
  const Dim count = *used.data<std::int32_t>();
  require(count >= 0 && count <= rows, "more rows of experts than fit");
  return count;
}

}  // namespace

void sort_by_expert(Context& /*ctx*/, CView experts, Dim first_expert, View first_rows, View pairs,
                    View rows) {
  const auto* expert = experts.data<std::int32_t>();
  auto* first = first_rows.data<std::int32_t>();
  auto* pair = pairs.data<std::int32_t>();
  auto* row = rows.data<std::int32_t>();
  const Dim count = first_rows.numel() - 1;
  std::fill_n(first, count + 1, 0);
  const auto here = [=](Dim i) { return expert[i] - first_expert; };
  const auto counts = [=](Dim i) { return here(i) >= 0 && here(i) < count; };
  for (Dim i = 0; i < experts.numel(); ++i) {
    if (counts(i)) ++first[here(i) + 1];
  }
  for (Dim e = 0; e < count; ++e) first[e + 1] += first[e];
  require(first[count] <= pairs.numel(), "sort_by_expert: more rows than memory is planned for");
  // Each expert's next row; afterwards its first row is where the one before ends.
  for (Dim i = 0; i < experts.numel(); ++i) {
    row[i] = counts(i) ? first[here(i)]++ : -1;
    if (counts(i)) pair[row[i]] = static_cast<std::int32_t>(i);
  }
  for (Dim e = count; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

void count_rows(Context& /*ctx*/, CView first_rows, View counts) {
  const auto* first = first_rows.data<std::int32_t>();
  auto* count = counts.data<std::int32_t>();
  for (Dim e = 0; e < counts.numel(); ++e) count[e] = first[e + 1] - first[e];
}

void cut_first_rows(Context& /*ctx*/, CView first_rows, Dim count, View parts) {
  const auto* from = first_rows.data<std::int32_t>();
  auto* to = parts.data<std::int32_t>();
  const Dim width = first_rows.numel();
  for (Dim i = 0; i < parts.numel(); ++i) {
    to[i] = static_cast<std::int32_t>(
        std::clamp<Dim>(Dim{from[i % width]} - i / width * count, 0, count));
  }
}

void add_rows_beyond(Context& /*ctx*/, CView first_rows, Dim bound, View sums) {
  const Dim rows = first_rows.data<std::int32_t>()[first_rows.numel() - 1];
  add_to_sums(sums, kSumRowsBeyond, static_cast<double>(std::max<Dim>(0, rows - bound)));
}

void order_arrivals(Context& /*ctx*/, CView arrived, View first_rows, View order, View inverse) {
  const Dim experts = arrived.shape().back();
  const Dim ranks = arrived.numel() / experts;
  const auto* count = arrived.data<std::int32_t>();
  auto* first = first_rows.data<std::int32_t>();
  auto* place = order.data<std::int32_t>();
  auto* row = inverse.data<std::int32_t>();
  std::int64_t all = 0;
  for (Dim i = 0; i < arrived.numel(); ++i) all += count[i];
  require(all <= order.numel(), "order_arrivals: more rows than memory is planned for");
  std::int32_t next = 0;
  for (Dim e = 0; e < experts; ++e) {
    first[e] = next;
    std::int32_t before = 0;  // rows that arrived before this block
    for (Dim i = 0; i < e; ++i) before += count[i];
    for (Dim rank = 0; rank < ranks; ++rank) {
      const Dim block = rank * experts + e;
      for (std::int32_t i = 0; i < count[block]; ++i, ++next) {
        place[next] = before + i;
        row[before + i] = next;
      }
      // On to the expert's block of the next rank.
      for (Dim i = block; i < std::min(block + experts, arrived.numel()); ++i) before += count[i];
    }
  }
  first[experts] = next;
}

void gather_rows(Context& ctx, CView x, CView pairs, Dim divisor, View y, CView used) {
  with_floating(x.dtype(), "gather_rows", [&]<class T>(T) {
    const Dim C = x.shape().back();
    const T* from = x.data<T>();
    const auto* pair = pairs.data<std::int32_t>();
    T* to = y.data<T>();
    const Dim rows = rows_of(used, pairs.numel());
    parallel_chunks(ctx.threads(), rows, C, [=](int, Dim begin, Dim end) {
      for (Dim r = begin; r < end; ++r) {
        if (pair[r] < 0) {
          std::fill_n(to + r * C, C, T(0));
        } else {
          std::copy_n(from + pair[r] / divisor * C, C, to + r * C);
        }
      }
    });
  });
}

void sum_rows(Context& ctx, CView x, CView rows, View y, const RowPart& part) {
  if (part.used && *part.used.data<std::int32_t>() == 0 && part.accumulate == Accumulate::yes) {
    return;
  }
  with_real(x.dtype(), "sum_rows", [&]<class T>(T) {
    const Dim C = x.shape().back();
    const Dim K = rows.shape().back();
    const Dim R = x.rows();
    const Dim first = part.first;
    const bool overwrites = part.accumulate == Accumulate::no;
    const T* from = x.data<T>();
    const auto* row = rows.data<std::int32_t>();
    T* to = y.data<T>();
    parallel_chunks(ctx.threads(), y.rows(), K * C, [=](int, Dim begin, Dim end) {
      for (Dim n = begin; n < end; ++n) {
        T* out = to + n * C;
        if (overwrites) std::fill_n(out, C, T(0));
        for (Dim k = 0; k < K; ++k) {
          const Dim here = row[n * K + k] - first;
          if (row[n * K + k] < 0 || here < 0 || here >= R) continue;
          const T* term = from + here * C;
#pragma omp simd
          for (Dim i = 0; i < C; ++i) out[i] += term[i];
        }
      }
    });
  });
}

void weighted_activation_forward(Context& ctx, Activation activation, const WeightedRows& rows,
                                 View y) {
  with_real(y.dtype(), "weighted_activation_forward", [&]<class T>(T) {
    with_activation(activation, [&]<class Function>(Function) {
      const Dim F = y.shape().back();
      const Dim P = rows.pre.shape().back();
      const T* in = rows.pre.data<T>();
      const T* weight = rows.weights.data<T>();
      T* out = y.data<T>();
      parallel_chunks(ctx.threads(), rows_of(rows.used, y.rows()), 8 * F,
                      [=](int, Dim begin, Dim end) {
                        for (Dim r = begin; r < end; ++r) {
                          weighted_row<Function>(P != F, F, in + r * P, weight[r], out + r * F);
                        }
                      });
    });
  });
}

void weighted_activation_backward(Context& ctx, Activation activation, const WeightedRows& rows,
                                  CView dy, View dpre, View dweights) {
  with_real(dy.dtype(), "weighted_activation_backward", [&]<class T>(T) {
    with_activation(activation, [&]<class Function>(Function) {
      const Dim F = dy.shape().back();
      const Dim P = rows.pre.shape().back();
      const T* in = rows.pre.data<T>();
      const T* weight = rows.weights.data<T>();
      const T* gradient = dy.data<T>();
      T* out = dpre.data<T>();
      T* dweight = dweights.data<T>();
      parallel_chunks(ctx.threads(), rows_of(rows.used, dy.rows()), 16 * F,
                      [=](int, Dim begin, Dim end) {
                        for (Dim r = begin; r < end; ++r) {
                          dweight[r] = weighted_row_gradient<Function>(
                              P != F, F, in + r * P, weight[r], gradient + r * F, out + r * P);
                        }
                      });
    });
  });
}

}  // namespace hyperslab::ops::cpu
