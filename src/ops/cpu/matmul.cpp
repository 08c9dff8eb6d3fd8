// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include "../backend.hpp"
#include "../checks.hpp"
#include "activation_functions.hpp"
#include "bf16_gemm.hpp"
#include "bf16_rounding.hpp"
#include "gemm.hpp"
#include "parallel.hpp"
#include "row_gemm.hpp"
#include "wide_operands.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kRowBlock = 512;    // rows of dy weight that wait for their activation's derivative
constexpr Dim kColumnBlock = 64;  // columns summed at once, kept in registers and L1
constexpr Dim kPartialRows = 64;  // rows per partial sum, so that long columns keep their digits

template <class T>
T beta_of(Accumulate accumulate) {
  return accumulate == Accumulate::yes ? T(1) : T(0);
}

/// Every row of y becomes the bias, or is added to: a GEMM with beta 1 then adds the product.
template <class T>
void bias_rows(int threads, Dim rows, Dim M, const T* bias, Accumulate accumulate, T* y) {
  parallel_chunks(threads, rows, M, [=](int, Dim begin, Dim end) {
    for (Dim row = begin; row < end; ++row) {
      T* out = y + row * M;
      if (accumulate == Accumulate::no) {
        std::copy_n(bias, M, out);
      } else {
        std::transform(bias, bias + M, out, out, std::plus<>());
      }
    }
  });
}

/// out (+)= sums over rows of the (rows, M) matrix; a fixed order for every column.
template <class Stored, class T>
void column_sums(int threads, Dim rows, Dim M, const Stored* matrix, bool accumulate, T* out) {
  const Dim blocks = (M + kColumnBlock - 1) / kColumnBlock;
  parallel_chunks(threads, blocks, rows * kColumnBlock, [=](int, Dim begin, Dim end) {
    for (Dim block = begin; block < end; ++block) {
      const Dim first = block * kColumnBlock;
      const Dim width = std::min(kColumnBlock, M - first);
      T total[kColumnBlock] = {};
      for (Dim row0 = 0; row0 < rows; row0 += kPartialRows) {
        T partial[kColumnBlock] = {};
        for (Dim row = row0; row < std::min(rows, row0 + kPartialRows); ++row) {
          const Stored* source = matrix + row * M + first;
#pragma omp simd
          for (Dim i = 0; i < width; ++i) partial[i] += widened(source[i]);
        }
        for (Dim i = 0; i < width; ++i) total[i] += partial[i];
      }
      for (Dim i = 0; i < width; ++i) {
        out[first + i] = accumulate ? out[first + i] + total[i] : total[i];
      }
    }
  });
}

/// Calls body(float()), body(double()), or body(bf16()) for matrices that bf16_gemm multiplies.
template <class Body>
void with_multiplied(DType dtype, const char* op, Body&& body) {
  if (dtype == DType::bf16) return std::forward<Body>(body)(bf16());
  with_real(dtype, op, std::forward<Body>(body));
}

/// Columns of a matrix that a product, and a bias if there is one, is written or added to.
struct Destination {
  Columns columns;
  Accumulate accumulate;
  CView bias{};
};

template <class T>
void multiply(Context& ctx, GemmSize n, float scale, Operand<T> a, Operand<T> b,
              const Destination& c) {
  const View matrix = c.columns.matrix;
  const Dim row = matrix.shape().back();
  if constexpr (std::is_same_v<T, bf16>) {
    auto* first = static_cast<std::byte*>(matrix.raw()) +
                  static_cast<std::size_t>(c.columns.first) * size_of(matrix.dtype());
    bf16_gemm(
        ctx.threads(), n, scale, a, b,
        {first, matrix.dtype(), row, c.accumulate == Accumulate::yes, optional_data<bf16>(c.bias)});
  } else {
    const T beta = c.bias ? T(1) : beta_of<T>(c.accumulate);
    if (c.bias) {
      bias_rows(ctx.threads(), n.M, n.N, c.bias.data<T>(), c.accumulate, matrix.data<T>());
    }
    const Result<T> result = {matrix.data<T>() + c.columns.first, row, beta};
    // A token has the same bits in a forward pass over one text, over many, and over its end alone.
    if (ctx.deterministic() && a.trans == Trans::no && b.trans == Trans::yes) {
      row_gemm<T>(ctx.threads(), n, static_cast<T>(scale), a, b, result);
    } else {
      gemm<T>(n, static_cast<T>(scale), a, b, result);
    }
  }
}

}  // namespace

std::size_t linear_activation_backward_input_workspace(Dim rows, Dim width, DType dtype) {
  return static_cast<std::size_t>(std::min(rows, kRowBlock) * width) *
         size_of(statistic_dtype(dtype));
}

void matmul(Context& ctx, CView a, Trans trans_a, CView b, Trans trans_b, Accumulate accumulate,
            View c) {
  with_multiplied(a.dtype(), "matmul", [&]<class T>(T) {
    const Dim K = a.shape()[trans_a == Trans::no ? 1 : 0];
    multiply<T>(ctx, {c.shape()[0], c.shape()[1], K}, 1, {a.data<T>(), a.shape()[1], trans_a},
                {b.data<T>(), b.shape()[1], trans_b}, {all_columns(c), accumulate});
  });
}

void matmul_columns(Context& ctx, const CColumns& a, const CColumns& b, float scale,
                    Accumulate accumulate, const Columns& c) {
  with_multiplied(a.matrix.dtype(), "matmul_columns", [&]<class T>(T) {
    const auto operand = [](const CColumns& columns) {
      return Operand<T>{columns.matrix.data<T>() + columns.first, columns.matrix.shape()[1],
                        columns.trans};
    };
    const Dim K = a.trans == Trans::no ? a.count : a.matrix.shape()[0];
    multiply<T>(ctx, {c.matrix.shape()[0], c.count, K}, scale, operand(a), operand(b),
                {c, accumulate});
  });
}

void linear_forward(Context& ctx, CView x, CView weight, CView bias, Accumulate accumulate,
                    View y) {
  with_multiplied(x.dtype(), "linear_forward", [&]<class T>(T) {
    const Dim M = weight.shape()[0];
    const Dim K = weight.shape()[1];
    multiply<T>(ctx, {leading(x.shape()), M, K}, 1, {x.data<T>(), K},
                {weight.data<T>(), K, Trans::yes}, {all_columns(y), accumulate, bias});
  });
}

void linear_activation_forward(Context& ctx, CView x, CView weight, CView bias,
                               Activation activation, View pre, View y) {
  call<linear_forward>(ctx, x, weight, bias, Accumulate::no, pre);
  call<activation_forward>(ctx, activation, pre, y);
}

void linear_backward_input(Context& ctx, CView dy, CView weight, Accumulate accumulate, View dx) {
  with_multiplied(dy.dtype(), "linear_backward_input", [&]<class T>(T) {
    const Dim M = weight.shape()[0];
    const Dim K = weight.shape()[1];
    multiply<T>(ctx, {leading(dy.shape()), K, M}, 1, {dy.data<T>(), M}, {weight.data<T>(), K},
                {all_columns(dx), accumulate});
  });
}

void linear_activation_backward_input(Context& ctx, CView dy, CView weight, CView pre,
                                      Activation activation, const ActivationGradients& gradients) {
  const auto& [dpre, dbias, accumulate_bias] = gradients;
  const Dim rows = leading(dy.shape());
  const Dim M = weight.shape()[0];
  const Dim K = weight.shape()[1];
  void* scratch = ctx.workspace("linear_activation_backward_input",
                                linear_activation_backward_input_workspace(rows, K, dy.dtype()));
  const CView dy_rows = dy.reshaped({rows, M});
  const CView pre_rows = pre.reshaped({rows, K});
  const View dpre_rows = dpre.reshaped({rows, K});
  // dy weight goes to scratch memory first, because dpre may have the memory of pre.
  for (Dim row = 0; row < rows; row += kRowBlock) {
    const Dim count = std::min(kRowBlock, rows - row);
    const View dy_weight(scratch, dy.dtype(), Device::cpu, {count, K});
    call<linear_backward_input>(ctx, dy_rows.slice(row, count), weight, Accumulate::no, dy_weight);
    call<activation_backward>(ctx, activation, pre_rows.slice(row, count), dy_weight,
                              dpre_rows.slice(row, count));
  }
  if (dbias) call<linear_backward_weight>(ctx, dpre, CView(), accumulate_bias, View(), dbias);
}

void linear_backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate, View dweight,
                            View dbias) {
  with_multiplied(dy.dtype(), "linear_backward_weight", [&]<class T>(T) {
    using Sum = Computed<T>;
    const Dim rows = leading(dy.shape());
    const Dim M = dy.shape().back();
    if (dweight) {
      const Dim K = dweight.shape()[1];
      multiply<T>(ctx, {M, K, rows}, 1, {dy.data<T>(), M, Trans::yes}, {x.data<T>(), K},
                  {all_columns(dweight), accumulate});
    }
    if (dbias) {
      WideOperands wide(ctx.threads());
      column_sums(ctx.threads(), rows, M, dy.data<T>(), accumulate == Accumulate::yes,
                  wide(dbias).template data<Sum>());
      wide.round_results();
    }
  });
}

}  // namespace hyperslab::ops::cpu
