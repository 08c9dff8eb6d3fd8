// SPDX-License-Identifier: Apache-2.0
#include "row_gemm.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "parallel.hpp"
#include "small_gemm.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kRowsAtOnce = 64;  // rows of c, whose sums wait in 8 KiB

/// Rows [first, first + count) of b as columns, (K, kPanel) with zeros after them.
template <class T>
void pack_panel(Dim K, const Operand<T>& b, Dim first, Dim count, T* panel) {
  for (Dim k = 0; k < K; ++k) {
    T* out = panel + k * kPanel<T>;
    for (Dim j = 0; j < count; ++j) out[j] = b.data[(first + j) * b.row + k];
    std::fill(out + count, out + kPanel<T>, T(0));
  }
}

template <class T>
void add_sums(Dim rows, Dim columns, T alpha, const T* sums, Result<T> c) {
  for (Dim i = 0; i < rows; ++i) {
    T* out = c.data + i * c.row;
    const T* sum = sums + i * kPanel<T>;
    if (c.beta == T(0)) {
      for (Dim j = 0; j < columns; ++j) out[j] = alpha * sum[j];
    } else {
      for (Dim j = 0; j < columns; ++j) out[j] = c.beta * out[j] + alpha * sum[j];
    }
  }
}

}  // namespace

template <class T>
void row_gemm(int threads, GemmSize n, T alpha, Operand<T> a, Operand<T> b, Result<T> c) {
  require(a.trans == Trans::no && b.trans == Trans::yes, "row_gemm: is of a and b transposed");
  const Dim panels = (n.N + kPanel<T> - 1) / kPanel<T>;
  parallel_chunks(
      threads, panels, work_of_products(n.M * n.K * kPanel<T>), [&](int, Dim begin, Dim end) {
        thread_local std::vector<T> panel;
        panel.resize(std::max(panel.size(), static_cast<std::size_t>(n.K * kPanel<T>)));
        alignas(64) std::array<T, kRowsAtOnce * kPanel<T>> sums;
        for (Dim p = begin; p < end; ++p) {
          const Dim column = p * kPanel<T>;
          const Dim columns = std::min(kPanel<T>, n.N - column);
          pack_panel(n.K, b, column, columns, panel.data());
          for (Dim row = 0; row < n.M; row += kRowsAtOnce) {
            const Dim rows = std::min(kRowsAtOnce, n.M - row);
            small_gemm<T>(rows, kPanel<T>, n.K, {a.data + row * a.row, a.row, 1},
                          {panel.data(), kPanel<T>, 0}, {sums.data(), kPanel<T>, false});
            add_sums<T>(rows, columns, alpha, sums.data(),
                        {c.data + row * c.row + column, c.row, c.beta});
          }
        }
      });
}

template void row_gemm(int, GemmSize, float, Operand<float>, Operand<float>, Result<float>);
template void row_gemm(int, GemmSize, double, Operand<double>, Operand<double>, Result<double>);

}  // namespace hyperslab::ops::cpu
