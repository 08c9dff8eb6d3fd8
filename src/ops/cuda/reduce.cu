// SPDX-License-Identifier: Apache-2.0
#include "../checks.hpp"
#include "kernels_common.cuh"
#include "reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kPartialRows = 32;  // threads that share a column of partial sums
constexpr int kColumnRows = 8;    // threads that share a column of dy

/// Thread (x, y) sums the partials y, y + kPartialRows, ... of one column.
__global__ void __launch_bounds__(32 * kPartialRows) sum_partials_kernel(PartialSums s) {
  __shared__ float rows[kPartialRows][33];
  const Dim column = static_cast<Dim>(blockIdx.x) * 32 + threadIdx.x;
  float* const out = column < 4 * s.C ? s.out[column / s.C] : nullptr;
  const bool inside = out != nullptr;
  float sum = 0;
  overlap();
  wait_for_earlier();
  if (inside) {
#pragma unroll 4
    for (int part = static_cast<int>(threadIdx.y); part < s.parts; part += kPartialRows) {
      sum += s.partial[part * s.stride + column];
    }
  }
  rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || !inside) return;
#pragma unroll
  for (int row = 1; row < kPartialRows; ++row) sum += rows[row][threadIdx.x];
  float& total = out[column % s.C];
  total = s.accumulate ? total + sum : sum;
}

/// Block (x, y) sums N * 32 columns of the y-th part of the rows into partial[y].
template <int N, class T>
__global__ void __launch_bounds__(32 * kColumnRows)
    column_sums_kernel(const T* dy, Dim rows, Dim C, float* partial) {
  __shared__ float sums[kColumnRows][N][32];
  const Dim column = (static_cast<Dim>(blockIdx.x) * 32 + threadIdx.x) * N;
  const Dim begin = rows * blockIdx.y / gridDim.y;
  const Dim end = rows * (blockIdx.y + 1) / gridDim.y;
  float sum[N] = {};
  overlap();
  wait_for_earlier();
  if (column < C) {
#pragma unroll 4
    for (Dim row = begin + threadIdx.y; row < end; row += kColumnRows) {
      float value[N];
      load<N>(dy + row * C + column, value);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= C) return;
  float* out = partial + blockIdx.y * C + column;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    for (int row = 1; row < kColumnRows; ++row) sum[i] += sums[row][i][threadIdx.x];
    out[i] = sum[i];
  }
}

template <int N, class T>
__global__ void __launch_bounds__(256) squares_kernel(const T* x, Dim count, SquareSum* partial) {
  __shared__ double scratch[32];
  const Dim first = static_cast<Dim>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Dim stride = static_cast<Dim>(gridDim.x) * blockDim.x;
  double squares = 0;
  double non_finite = 0;
  const auto take = [&](float value) {
    squares += static_cast<double>(value) * static_cast<double>(value);
    non_finite += isfinite(value) ? 0.0 : 1.0;
  };
#pragma unroll 4
  for (Dim v = first; v < count / N; v += stride) {
    float value[N];
    load<N>(x + v * N, value);
#pragma unroll
    for (int i = 0; i < N; ++i) take(value[i]);
  }
  const Dim rest = count / N * N + first;
  if (rest < count) take(to_real(x[rest]));
  squares = block_sum(squares, scratch);
  non_finite = block_sum(non_finite, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = {squares, non_finite};
}

}  // namespace

void sum_partials(Context& ctx, const char* op, const PartialSums& sums) {
  Dim outputs = 4;
  while (outputs > 0 && sums.out[outputs - 1] == nullptr) --outputs;
  const Dim columns = outputs * sums.C;
  if (columns == 0) return;
  const dim3 threads(32, kPartialRows);
  launch_waiting(ctx, op, sums.rows, sum_partials_kernel,
                 {static_cast<unsigned>(ceil_divide(columns, 32)), threads}, sums);
}

void column_sums(Context& ctx, CView dy, Accumulate accumulate, View dbias) {
  constexpr const char* kName = "column_sums";
  const Dim C = dy.shape().back();
  const Dim rows = leading(dy.shape());
  if (C == 0) return;
  const int parts = column_sums_parts(rows, C);
  auto* partial = static_cast<float*>(ctx.workspace(kName, column_sums_workspace(rows, C)));
  with_element(dy.dtype(), kName, [&]<class T>(T) {
    constexpr int N = kVector<T>;
    const T* data = dy.data<T>();
    const bool vectors = C % N == 0 && aligned(data);
    const dim3 threads(32, kColumnRows);
    const dim3 blocks(static_cast<unsigned>(ceil_divide(C, vectors ? 32 * N : 32)),
                      static_cast<unsigned>(parts));
    launch_waiting(ctx, kName, rows, vectors ? column_sums_kernel<N, T> : column_sums_kernel<1, T>,
                   {blocks, threads}, data, rows, C, partial);
  });
  sum_partials(ctx, kName,
               {.rows = rows,
                .partial = partial,
                .parts = parts,
                .stride = C,
                .C = C,
                .accumulate = accumulate == Accumulate::yes,
                .out = {dbias.data<float>()}});
}

const SquareSum* sum_of_squares(Context& ctx, const char* op, CView x) {
  const Dim count = x.numel();
  auto* partial = static_cast<SquareSum*>(ctx.workspace(op, sum_of_squares_workspace(count)));
  const auto blocks = static_cast<unsigned>(sum_of_squares_blocks(count));
  with_element(x.dtype(), op, [&]<class T>(T) {
    constexpr int N = kVector<T>;
    const T* data = x.data<T>();
    if (aligned(data)) {
      squares_kernel<N><<<blocks, 256, 0, ctx.stream().cuda()>>>(data, count, partial);
    } else {
      squares_kernel<1><<<blocks, 256, 0, ctx.stream().cuda()>>>(data, count, partial);
    }
    check_launch(op);
  });
  return partial;
}

}  // namespace hyperslab::ops::cuda
