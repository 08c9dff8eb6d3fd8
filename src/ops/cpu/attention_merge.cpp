// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "../backend.hpp"
#include "math.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void merge_attention(Context& ctx, const AttentionPart& a, const AttentionPart& b, View out,
                     View log_sum_exp) {
  with_real(out.dtype(), "merge_attention", [&]<class T>(T) {
    const Dim tokens = out.shape()[1];
    const Dim H = log_sum_exp.shape()[1];
    const Dim D = out.shape()[2] / H;
    const auto merge = [&](Dim row, Dim h) {
      const Dim statistic = (row / tokens * H + h) * tokens + row % tokens;
      const T sum_a = a.log_sum_exp.data<T>()[statistic];
      const T sum_b = b.log_sum_exp.data<T>()[statistic];
      const T top = std::max(sum_a, sum_b);
      const bool seen = top > -std::numeric_limits<T>::infinity();
      const T weight_a = seen ? std::exp(sum_a - top) : T(0);
      const T weight_b = seen ? std::exp(sum_b - top) : T(0);
      const T total = seen ? weight_a + weight_b : T(1);
      const Dim at = (row * H + h) * D;
      const T* from_a = a.out.data<T>() + at;
      const T* from_b = b.out.data<T>() + at;
      T* to = out.data<T>() + at;
#pragma omp simd
      for (Dim d = 0; d < D; ++d) to[d] = (weight_a * from_a[d] + weight_b * from_b[d]) / total;
      log_sum_exp.data<T>()[statistic] = seen ? top + std::log(total) : top;
    };
    parallel_chunks(ctx.threads(), out.shape()[0] * tokens, H * D, [&](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        for (Dim h = 0; h < H; ++h) merge(row, h);
      }
    });
  });
}

}  // namespace hyperslab::ops::cpu
