// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// -1 as the public function says.
template <class T>
std::int32_t largest_of(const T* row, Dim V) {
  constexpr T kMost = std::numeric_limits<T>::max();
  std::int32_t best = -1;
  for (Dim i = 0; i < V; ++i) {
    if (!(row[i] <= kMost)) return -1;
    if (row[i] < -kMost) continue;
    if (best < 0 || row[i] > row[best]) best = static_cast<std::int32_t>(i);
  }
  return best;
}

}  // namespace

void argmax(Context& ctx, CView x, Dim V, View index) {
  with_real(x.dtype(), "argmax", [&]<class T>(T) {
    const auto [rows, columns] = x.dims<2>("argmax x");
    const T* from = x.data<T>();
    auto* to = index.data<std::int32_t>();
    parallel_chunks(ctx.threads(), rows, V, [=, columns = columns](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) to[row] = largest_of(from + row * columns, V);
    });
  });
}

}  // namespace hyperslab::ops::cpu
