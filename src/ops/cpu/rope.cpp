// SPDX-License-Identifier: Apache-2.0
#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void rope(Context& ctx, const HeadLayout& layout, CView cosines, CView sines,
          const TokenPosition& first_position, Rotation rotation, View qkv) {
  with_real(qkv.dtype(), "rope", [&]<class T>(T) {
    const auto [B, T_tokens, width] = qkv.dims<3>("rope qkv");
    const Dim half = cosines.shape()[1];
    const Dim rotated = layout.heads + layout.kv_heads;
    const T sign = rotation == Rotation::forward ? T(1) : T(-1);
    const auto rows = [&, T_tokens = T_tokens, width = width](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        const Dim position = first_position.of(row / T_tokens) + row % T_tokens;
        const T* cosine = cosines.data<T>() + position * half;
        const T* sine = sines.data<T>() + position * half;
        for (Dim head = 0; head < rotated; ++head) {
          T* low = qkv.data<T>() + row * width + head * layout.head_width;
          T* high = low + half;
#pragma omp simd
          for (Dim i = 0; i < half; ++i) {
            const T a = low[i];
            const T b = high[i];
            low[i] = a * cosine[i] - b * (sign * sine[i]);
            high[i] = b * cosine[i] + a * (sign * sine[i]);
          }
        }
      }
    };
    parallel_chunks(ctx.threads(), B * T_tokens, width, rows);
  });
}

}  // namespace hyperslab::ops::cpu
