// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "../checks.hpp"
#include "gemm.hpp"
#include "parallel.hpp"
#include "quantized_codes.hpp"
#include "quantized_linear.hpp"
#include "widened_kernels.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kFewRows = 8;  // products of so few rows widen weights in registers
constexpr Dim kWideElements = Dim{512} * 1024;  // widened at once for many rows

template <class T>
struct WidenedProblem {
  Dim rows;
  Dim M;
  Dim K;
  const T* x;
  const T* bias;
  T* y;
};

/// Weight rows that are widened at once.
Dim block_rows(Dim M, Dim K) {
  return std::min(M, std::max<Dim>(kWideElements / std::max<Dim>(K, 1), 16));
}

/// Widens a block of weight rows to memory, and multiplies with it.
template <class T>
void multiply_blocks(int threads, const WidenedProblem<T>& p, const CQuantizedMatrix& weight,
                     T* wide) {
  if (p.bias != nullptr) {
    for (Dim row = 0; row < p.rows; ++row) std::copy_n(p.bias, p.M, p.y + row * p.M);
  }
  const Dim block = block_rows(p.M, p.K);
  const Dim groups = weight.group == 0 ? 1 : p.K / weight.group;  // scale groups in a row
  for (Dim first = 0; first < p.M; first += block) {
    const Dim count = std::min(block, p.M - first);
    parallel_chunks(threads, count, p.K, [&](int, Dim begin, Dim end) {
      widen(weight, (first + begin) * groups, (first + end) * groups, wide + begin * p.K);
    });
    gemm<T>({p.rows, count, p.K}, T(1), {p.x, p.K}, {wide, p.K, Trans::yes},
            {p.y + first, p.M, p.bias == nullptr ? T(0) : T(1)});
  }
}

/// Splits each row into its even elements, then its odd ones.
void split_rows(int threads, const WidenedProblem<float>& p, float* out) {
  const Dim half = p.K / 2;
  parallel_chunks(threads, p.rows, p.K, [=](int, Dim begin, Dim end) {
    for (Dim row = begin; row < end; ++row) {
      const float* from = p.x + row * p.K;
      float* to = out + row * p.K;
      for (Dim i = 0; i < half; ++i) {
        to[i] = from[2 * i];
        to[half + i] = from[2 * i + 1];
      }
    }
  });
}

void multiply_few(int threads, const WidenedProblem<float>& p, const CQuantizedMatrix& weight,
                  float* split) {
  const bool nibbles = weight.format != WeightFormat::int8;
  if (nibbles) split_rows(threads, p, split);
  const float* x = nibbles ? split : p.x;
  const Dim units = (p.M + 3) / 4;
  parallel_chunks(threads, units, work_of_products(4 * p.K * p.rows) + 4 * p.K,
                  [&](int, Dim begin, Dim end) {
                    const Dim last = std::min(end * 4, p.M);
                    for (Dim first = begin * 4; first < last;) {
                      const int step = last - first >= 4 ? 4 : 1;
                      for (Dim row = 0; row < p.rows; row += kWidenedRows) {
                        const Dim rows = std::min(kWidenedRows, p.rows - row);
                        std::array<float, kWidenedRows * 4> sums;
                        widened_dots({x + row * p.K, rows, p.K}, weight, first, step, sums.data());
                        for (Dim i = 0; i < rows; ++i) {
                          for (int j = 0; j < step; ++j) {
                            const float bias = p.bias == nullptr ? 0.0F : p.bias[first + j];
                            p.y[(row + i) * p.M + first + j] = sums[i * 4 + j] + bias;
                          }
                        }
                      }
                      first += step;
                    }
                  });
}

}  // namespace

std::size_t widened_linear_workspace(int, Dim rows, Dim M, Dim K, DType dtype) {
  const Dim few = std::min(rows, kFewRows) * K;  // enough for a part of the rows, too
  return static_cast<std::size_t>(std::max(few, block_rows(M, K) * K)) *
         size_of(statistic_dtype(dtype));
}

void widened_linear(Context& ctx, InstructionSet set, const QuantizedLinear& operands) {
  // No structured binding: Clang 16 cannot capture one in a region of OpenMP.
  const auto& x = operands.x;
  const auto& weight = operands.weight;
  with_real(x.dtype(), "quantized_linear_forward", [&]<class T>(T) {
    const WidenedProblem<T> problem = {leading(x.shape()),
                                       weight.shape[0],
                                       weight.shape[1],
                                       x.data<T>(),
                                       optional_data<T>(operands.bias),
                                       operands.y.data<T>()};
    const std::size_t bytes =
        widened_linear_workspace(ctx.threads(), problem.rows, problem.M, problem.K, x.dtype());
    auto* scratch = static_cast<T*>(ctx.workspace("quantized_linear_forward", bytes));
    if constexpr (std::is_same_v<T, float>) {
      if (problem.rows <= kFewRows && set >= InstructionSet::avx512_vnni &&
          widened_kernels_read(weight)) {
        return multiply_few(ctx.threads(), problem, weight, scratch);
      }
    }
    multiply_blocks(ctx.threads(), problem, weight, scratch);
  });
}

}  // namespace hyperslab::ops::cpu
