// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kHeld = 32;        // columns that one thread keeps in registers
constexpr int kRowsInBlock = 4;  // if one warp takes a row
constexpr Dim kFewRows = 8;      // a vector a thread, so that they are over soon
constexpr Dim kMostThreads = 512;
static_assert(512 * kHeld == kMaxNormWidth);

template <class T>
struct ForwardCall {
  Dim rows;
  Dim C;
  float eps;
  const T* residual;
  const T* delta;
  const T* weight;
  const T* bias;
  T* sum;
  T* y;
  float* mean;
  float* rstd;
};

/// The sum over a row: over the warp, or over a block that is one row.
__device__ float row_sum(float value, float* scratch) {
  return blockDim.x == 32 ? warp_sum(value) : block_sum(value, scratch);
}

/// One row per threadIdx.y. The columns of thread x are K vectors x, x + blockDim.x, ...; they stay
/// in registers from the addition to the output. A single one comes with its weights, which do not
/// change while kernels overlap, before earlier kernels have ended.
template <int N, int K, bool kCentered, class T>
__global__ void __launch_bounds__(512) add_norm_kernel(ForwardCall<T> call) {
  __shared__ float scratch[32];
  overlap();
  const auto column = [&](int k) { return static_cast<Dim>(threadIdx.x + k * blockDim.x) * N; };
  float only_weight[N] = {};
  if (K == 1 && column(0) < call.C) load<N>(call.weight + column(0), only_weight);
  wait_for_earlier();
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const Dim offset = row * call.C;
  float x[K][N] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) < call.C) load<N>(call.residual + offset + column(k), x[k]);
  }
  if (call.delta != nullptr) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= call.C) continue;
      float delta[N];
      load<N>(call.delta + offset + column(k), delta);
#pragma unroll
      for (int i = 0; i < N; ++i) x[k][i] = rounded<T>(x[k][i] + delta[i]);
    }
  }
  if (call.sum != nullptr && (call.delta != nullptr || call.sum != call.residual)) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) < call.C) store<N>(call.sum + offset + column(k), x[k]);
    }
  }
  float mean = 0;
  if constexpr (kCentered) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) total += x[k][i];
    }
    mean = row_sum(total, scratch) / static_cast<float>(call.C);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= call.C) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (x[k][i] - mean) * (x[k][i] - mean);
  }
  const float variance = row_sum(squares, scratch) / static_cast<float>(call.C);
  const float rstd = 1.0F / sqrtf(variance + call.eps);
  if (threadIdx.x == 0) {
    if constexpr (kCentered) call.mean[row] = mean;
    call.rstd[row] = rstd;
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= call.C) continue;
    float several[N];
    float bias[N] = {};
    if (K > 1) load<N>(call.weight + column(k), several);
    const float(&weight)[N] = K > 1 ? several : only_weight;
    if (call.bias != nullptr) load<N>(call.bias + column(k), bias);
#pragma unroll
    for (int i = 0; i < N; ++i) x[k][i] = (x[k][i] - mean) * rstd * weight[i] + bias[i];
    store<N>(call.y + offset + column(k), x[k]);
  }
}

template <int N, bool kCentered, class T>
void launch(Context& ctx, const ForwardCall<T>& call) {
  const bool overlaps = ctx.fixed_parameters() && !ctx.deterministic();  // it sums otherwise
  if (N > 1 && overlaps && call.rows <= kFewRows && call.C <= kMostThreads * N) {
    const auto threads = static_cast<unsigned>(ceil_divide(ceil_divide(call.C, N), 32) * 32);
    return launch_overlapping(ctx, "add_norm_forward", add_norm_kernel<N, 1, kCentered, T>,
                              {static_cast<unsigned>(call.rows), threads}, call);
  }
  const Dim per_row = ceil_divide(ceil_divide(call.C, kHeld), 32) * 32;
  const dim3 threads(static_cast<unsigned>(per_row), per_row == 32 ? kRowsInBlock : 1);
  const auto blocks = static_cast<unsigned>(ceil_divide(call.rows, threads.y));
  launch_waiting(ctx, "add_norm_forward", call.rows, add_norm_kernel<N, kHeld / N, kCentered, T>,
                 {blocks, threads}, call);
}

template <bool kCentered, class T>
void launch(Context& ctx, const ForwardCall<T>& call) {
  constexpr int N = kVector<T>;
  if (call.C % N == 0 &&
      aligned(call.residual, call.delta, call.weight, call.bias, call.sum, call.y)) {
    launch<N, kCentered>(ctx, call);
  } else {
    launch<1, kCentered>(ctx, call);
  }
}

/// Without a norm: sum and y are residual + delta.
template <class T>
struct AddOnly {
  static constexpr int kWidth = kVector<T>;
  const T* residual;
  const T* delta;
  T* sum;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    float value[N];
    load<N>(residual + i, value);
    if (delta != nullptr) {
      float added[N];
      load<N>(delta + i, added);
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] += added[k];
    }
    if (sum != nullptr) store<N>(sum + i, value);
    store<N>(y + i, value);
  }
};

template <class T>
void add_only(Context& ctx, CView y, const AddOnly<T>& op) {
  if (op.delta == nullptr && op.sum == nullptr && op.y == op.residual) return;
  for_each(ctx, "add_norm_forward", y, aligned(op.residual, op.delta, op.sum, op.y), op);
}

}  // namespace

void add_norm_forward(Context& ctx, NormKind kind, const NormOperands& operands,
                      const NormResults& results) {
  constexpr const char* kName = "add_norm_forward";
  with_element(operands.residual.dtype(), kName, [&]<class T>(T) {
    if (operands.residual.numel() == 0) return;
    const T* x = operands.residual.data<T>();
    const T* added = optional_data<T>(operands.delta);
    T* kept = optional_data<T>(results.sum);
    if (kind == NormKind::none) {
      return add_only<T>(ctx, results.y, {x, added, kept, results.y.data<T>()});
    }
    const Dim C = operands.residual.shape().back();
    require(C <= kMaxNormWidth, "add_norm_forward: rows on a GPU are at most 16384 wide");
    const bool centered = kind == NormKind::layernorm;
    const ForwardCall<T> call = {leading(operands.residual.shape()),
                                 C,
                                 operands.eps,
                                 x,
                                 added,
                                 operands.weight.data<T>(),
                                 centered ? optional_data<T>(operands.bias) : nullptr,
                                 kept,
                                 results.y.data<T>(),
                                 centered ? results.mean.data<float>() : nullptr,
                                 results.rstd.data<float>()};
    if (centered) {
      launch<true>(ctx, call);
    } else {
      launch<false>(ctx, call);
    }
  });
}

}  // namespace hyperslab::ops::cuda
