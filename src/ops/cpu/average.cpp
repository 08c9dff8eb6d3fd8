// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void average_weights(Context& ctx, const AverageConstants& constants, const StepState* state,
                     CView master, View average) {
  if (state->skip != 0) return;
  const bool begins = state->adam_step <= constants.start_step + 1;
  with_real(master.dtype(), "average_weights", [&]<class T>(T) {
    const T* from = master.data<T>();
    T* to = average.data<T>();
    const T weight = T(constants.weight);
    parallel_chunks(ctx.threads(), master.numel(), 3, [=](int, Dim begin, Dim end) {
      if (begins) {
        std::copy(from + begin, from + end, to + begin);
        return;
      }
#pragma omp simd
      for (Dim i = begin; i < end; ++i) to[i] += weight * (from[i] - to[i]);
    });
  });
}

void exchange(Context& ctx, View a, View b) {
  with_real(a.dtype(), "exchange", [&]<class T>(T) {
    T* x = a.data<T>();
    T* y = b.data<T>();
    parallel_chunks(ctx.threads(), a.numel(), 4, [=](int, Dim begin, Dim end) {
      std::swap_ranges(x + begin, x + end, y + begin);
    });
  });
}

}  // namespace hyperslab::ops::cpu
