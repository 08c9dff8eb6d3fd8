// SPDX-License-Identifier: Apache-2.0
#include "../backend.hpp"
#include "math.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void attention_sinks_backward(Context& ctx, const HeadLayout& layout, CView dout, CView out,
                              CView weights, Accumulate accumulate, View dlogits) {
  with_real(out.dtype(), "attention_sinks_backward", [&]<class T>(T) {
    const Dim B = out.shape()[0];
    const Dim tokens = out.shape()[1];
    const Dim H = layout.heads;
    const Dim D = layout.head_width;
    const auto gradient_of = [&](Dim h) {
      double sum = 0;
      for (Dim b = 0; b < B; ++b) {
        const T* weight = weights.data<T>() + (b * H + h) * tokens;
        for (Dim t = 0; t < tokens; ++t) {
          const Dim at = ((b * tokens + t) * H + h) * D;
          const T* x = out.data<T>() + at;
          const T* dx = dout.data<T>() + at;
          T dot = 0;
#pragma omp simd reduction(+ : dot)
          for (Dim d = 0; d < D; ++d) dot += x[d] * dx[d];
          sum += static_cast<double>(weight[t]) * static_cast<double>(dot);
        }
      }
      return sum;
    };
    parallel_chunks(ctx.threads(), H, B * tokens * D, [&](int, Dim begin, Dim end) {
      for (Dim h = begin; h < end; ++h) {
        T& result = dlogits.data<T>()[h];
        const T before = accumulate == Accumulate::yes ? result : T(0);
        result = before - static_cast<T>(gradient_of(h));
      }
    });
  });
}

}  // namespace hyperslab::ops::cpu
