// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "parallel.hpp"

namespace hyperslab::ops::cpu {

/// The larger of two magnitudes; NaN is larger than all.
[[nodiscard]] inline float larger_magnitude(float a, float b) {
  return a >= b || std::isnan(a) ? a : b;
}

/// The amax of all elements, as they are stored; 0 if there are none.
[[nodiscard]] inline float amax_of(int threads, CView x) {
  std::vector<float> of_chunks(static_cast<std::size_t>(threads), 0.0F);
  with_floating(x.dtype(), "amax_of", [&]<class T>(T) {
    const T* const elements = x.data<T>();
    parallel_chunks(threads, x.numel(), 1, [&](int chunk, Dim begin, Dim end) {
      float most = 0;
      for (Dim i = begin; i < end; ++i) {
        if constexpr (std::is_floating_point_v<T>) {
          most = larger_magnitude(most, static_cast<float>(std::abs(elements[i])));
        } else {
          most = larger_magnitude(most, std::abs(to_float(elements[i])));
        }
      }
      of_chunks[static_cast<std::size_t>(chunk)] = most;
    });
  });
  float most = 0;
  for (const float of_chunk : of_chunks) most = larger_magnitude(most, of_chunk);
  return most;
}

}  // namespace hyperslab::ops::cpu
