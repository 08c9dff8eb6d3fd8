// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cblas.h>

#include <algorithm>

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops::cpu {

/// A row-major operand of a GEMM: element (i, j) is data[i * row + j], or (j, i) if
/// transposed.
template <class T>
struct Operand {
  const T* data;
  Dim row;
  Trans trans = Trans::no;
};

/// c: (M, N) is made of K products an element.
struct GemmSize {
  Dim M;
  Dim N;
  Dim K;
};

/// A row-major result, multiplied by `beta` before op(a) op(b) is added; 0 does not read it.
template <class T>
struct Result {
  T* data;
  Dim row;
  T beta;
};

/// c = alpha op(a) op(b) + beta c. Sizes may be 0. Inside a parallel
/// region OpenBLAS uses the calling thread alone.
template <class T>
void gemm(GemmSize n, T alpha, Operand<T> a, Operand<T> b, Result<T> c) {
  if (n.M == 0 || n.N == 0) return;
  const auto blas = [](Dim row) { return static_cast<blasint>(std::max<Dim>(row, 1)); };
  const auto size = [](Dim count) { return static_cast<blasint>(count); };
  const auto trans = [](Trans t) { return t == Trans::no ? CblasNoTrans : CblasTrans; };
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, trans(a.trans), trans(b.trans), size(n.M), size(n.N), size(n.K),
                alpha, a.data, blas(a.row), b.data, blas(b.row), c.beta, c.data, blas(c.row));
  } else {
    cblas_dgemm(CblasRowMajor, trans(a.trans), trans(b.trans), size(n.M), size(n.N), size(n.K),
                alpha, a.data, blas(a.row), b.data, blas(b.row), c.beta, c.data, blas(c.row));
  }
}

}  // namespace hyperslab::ops::cpu
