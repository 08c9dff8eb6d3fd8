// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "checks.hpp"
#include "common.cuh"
#include "handles.hpp"
#include "reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kPartialRows = 32;  // threads that share a column of partial sums
constexpr int kColumnRows = 8;    // threads that share a column of dy

constexpr int kMostSums = 8;  // sums that one kernel adds up

/// PartialSums as the kernel takes them.
struct PartialColumns {
  const float* partial;
  int parts;
  int stride;
  int C;
  bool accumulate;
  ParamGradient out[4];
};
struct AllPartialColumns {
  PartialColumns sums[kMostSums];
  int first_block[kMostSums];  ///< the first block of each sum
  int count;
};

/// A block adds up 32 columns. Lane x of warp y adds the partial sums y, y + 32, ... of column x,
/// then warp y adds its 32 threads' sums of column y.
__global__ void __launch_bounds__(32 * kPartialRows) sum_partials_kernel(AllPartialColumns all) {
  __shared__ float rows[kPartialRows][33];
  int which = 0;
  while (which + 1 < all.count && static_cast<int>(blockIdx.x) >= all.first_block[which + 1]) {
    ++which;
  }
  const PartialColumns& s = all.sums[which];
  const int first = (static_cast<int>(blockIdx.x) - all.first_block[which]) * 32;
  const auto out_of = [&](int column) {
    return column < 4 * s.C ? s.out[column / s.C] : ParamGradient();
  };
  const int column = first + static_cast<int>(threadIdx.x);
  const bool inside = out_of(column).data != nullptr;
  float sum = 0;
  overlap();
  wait_for_earlier();
  if (inside) {
    const float* from = s.partial + column;
#pragma unroll 4
    for (int part = static_cast<int>(threadIdx.y); part < s.parts; part += kPartialRows) {
      sum += from[static_cast<Dim>(part) * s.stride];
    }
  }
  rows[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  float total[1] = {warp_sum(rows[threadIdx.x][threadIdx.y])};
  const int own = first + static_cast<int>(threadIdx.y);
  const ParamGradient out = out_of(own);
  if (threadIdx.x == 0 && out.data != nullptr) out.put<1>(own % s.C, s.accumulate, total);
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

/// Sums that wait, in the order of their ops.
struct DeferredReductions {
  std::array<PartialSums, kMostSums> sums;
  std::size_t count = 0;
};

namespace {

DeferredReductions& deferred_reductions_of(Context& ctx) {
  Backend& backend = backend_of(ctx);
  if (!backend.deferred_reductions)
    backend.deferred_reductions = std::make_shared<DeferredReductions>();
  return *backend.deferred_reductions;
}

/// Outputs up to the last one that is there.
int outputs_of(const PartialSums& sums) {
  int outputs = 4;
  while (outputs > 0 && !sums.out[outputs - 1]) --outputs;
  return outputs;
}

bool share_memory(const View& a, const View& b) {
  if (!a || !b) return false;
  const auto begin = [](const View& view) { return reinterpret_cast<std::uintptr_t>(view.raw()); };
  return begin(a) < begin(b) + b.bytes() && begin(b) < begin(a) + a.bytes();
}

/// True if both add to the same elements, so that one has to end before the other.
bool share_outputs(const PartialSums& a, const PartialSums& b) {
  return std::ranges::any_of(a.out, [&](const View& mine) {
    return std::ranges::any_of(b.out, [&](const View& other) { return share_memory(mine, other); });
  });
}

/// Adds up the partial sums that wait.
void add_up(Context& ctx, const char* op) {
  DeferredReductions& late = deferred_reductions_of(ctx);
  AllPartialColumns all = {};
  int blocks = 0;
  Dim rows = 0;
  for (std::size_t i = 0; i < late.count; ++i) {
    const PartialSums& s = late.sums[i];
    const int columns = outputs_of(s) * static_cast<int>(s.C);
    rows = std::max(rows, s.rows);
    all.first_block[i] = blocks;
    all.sums[i] = {s.partial,
                   s.parts,
                   static_cast<int>(s.stride),
                   static_cast<int>(s.C),
                   s.accumulate,
                   {s.out[0], s.out[1], s.out[2], s.out[3]}};
    blocks += static_cast<int>(ceil_divide(columns, 32));
  }
  all.count = static_cast<int>(std::exchange(late.count, 0));
  if (blocks == 0) return;
  const dim3 threads(32, kPartialRows);
  launch_waiting(ctx, op, rows, sum_partials_kernel, {static_cast<unsigned>(blocks), threads}, all);
}

}  // namespace

void sum_partials(Context& ctx, const char* op, const PartialSums& sums) {
  DeferredReductions& late = deferred_reductions_of(ctx);
  const std::span waiting(late.sums.data(), late.count);
  const bool collides =
      std::ranges::any_of(waiting, [&](const PartialSums& s) { return share_outputs(s, sums); });
  if (collides || late.count == late.sums.size()) add_up(ctx, op);
  late.sums[late.count++] = sums;
  if (ctx.deferred_reductions()) return;
  add_up(ctx, op);
  ctx.free_partials();
}

void finish_sums(Context& ctx) {
  add_up(ctx, "finish_sums");
  ctx.free_partials();
}

void column_sums(Context& ctx, CView dy, Accumulate accumulate, View dbias) {
  constexpr const char* kName = "column_sums";
  const Dim C = dy.shape().back();
  const Dim rows = leading(dy.shape());
  if (C == 0) return;
  const int parts = column_sums_parts(rows, C);
  auto* partial = static_cast<float*>(ctx.partials(kName, column_sums_partials(rows, C)));
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
                .out = {dbias}});
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
