// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gemm.hpp"

namespace hyperslab::ops::cpu {

/// c = alpha a b^T + beta c as gemm() has it, but each row of c has bits of its own: they depend
/// on that row of a, on b and on n.N and n.K, not on the rows beside it, its place among them, or
/// the threads. gemm() sums the rows of a last block in another order. Trans::no of a, yes of b.
/// T: float or double. The calling threads keep K x 32 or K x 16 elements of memory each.
template <class T>
void row_gemm(int threads, GemmSize n, T alpha, Operand<T> a, Operand<T> b, Result<T> c);

}  // namespace hyperslab::ops::cpu
