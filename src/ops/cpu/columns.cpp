// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void take_columns(Context& ctx, CView wide, Dim first, View narrow) {
  with_real(wide.dtype(), "take_columns", [&]<class T>(T) {
    const Dim W = wide.shape().back();
    const Dim C = narrow.shape().back();
    const T* from = wide.data<T>() + first;
    T* to = narrow.data<T>();
    parallel_chunks(ctx.threads(), narrow.rows(), C, [=](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) std::copy_n(from + row * W, C, to + row * C);
    });
  });
}

void put_columns(Context& ctx, CView narrow, Dim first, View wide) {
  with_real(wide.dtype(), "put_columns", [&]<class T>(T) {
    const Dim W = wide.shape().back();
    const Dim C = narrow.shape().back();
    const T* from = narrow.data<T>();
    T* to = wide.data<T>() + first;
    parallel_chunks(ctx.threads(), narrow.rows(), C, [=](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) std::copy_n(from + row * C, C, to + row * W);
    });
  });
}

}  // namespace hyperslab::ops::cpu
