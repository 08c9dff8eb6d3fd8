// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"
#include "hyperslab/ops/classes.hpp"

namespace hyperslab::ops::cuda {
namespace {

template <class T>
struct PatchTokens {
  static constexpr int kWidth = kVector<T>;
  const T* patches;
  const T* class_token;
  const T* positions;
  T* y;
  Dim tokens;
  Dim first;  // row of the first patch
  Dim C;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim row = i / C;
    const Dim c = i - row * C;
    const Dim b = row / tokens;
    const Dim t = row - b * tokens;
    float value[N];
    if (t < first) {
      load<N>(class_token + c, value);
    } else {
      load<N>(patches + (b * (tokens - first) + t - first) * C + c, value);
    }
    if (positions != nullptr) {
      float at_row[N];
      load<N>(positions + t * C + c, at_row);
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] += at_row[k];
    }
    store<N>(y + i, value);
  }
};

/// Element i of (T, C): the patches' gradients of all samples, and the sums over them.
template <class T>
struct PatchTokenGradients {
  static constexpr int kWidth = kVector<T>;
  const T* dy;
  T* dpatches;
  ParamGradient dclass_token;
  ParamGradient dpositions;
  Dim B;
  Dim tokens;
  Dim first;
  Dim C;
  bool accumulate;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim t = i / C;
    const Dim c = i - t * C;
    float sum[N] = {};
#pragma unroll 4
    for (Dim b = 0; b < B; ++b) {
      const T* from = dy + (b * tokens + t) * C + c;
      float value[N];
      load<N>(from, value);
      if (t >= first) store<N>(dpatches + (b * (tokens - first) + t - first) * C + c, value);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += value[k];
    }
    if (dclass_token.data != nullptr && t < first) dclass_token.put<N>(c, accumulate, sum);
    if (dpositions.data != nullptr) dpositions.put<N>(i, accumulate, sum);
  }
};

template <class T>
struct Sincos2d {
  static constexpr int kWidth = 1;
  Dim C;
  Dim first;
  Dim grid;
  T* table;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim t = i / C;
    const Dim c = i - t * C;
    const Dim w = C / 4;
    double value = 0;
    if (t >= first) {
      const Dim place = c < 2 * w ? (t - first) % grid : (t - first) / grid;
      const double angle = static_cast<double>(place) *
                           pow(10000.0, -static_cast<double>(c % w) / static_cast<double>(w));
      value = c / w % 2 == 0 ? sin(angle) : cos(angle);
    }
    table[i] = from_real<T>(static_cast<float>(value));
  }
};

/// Element i of (B, C).
template <class T>
struct PoolRows {
  static constexpr int kWidth = kVector<T>;
  const T* residual;
  const T* delta;
  float* pooled;
  Dim tokens;
  Dim pooled_rows;
  Dim first;
  Dim end;
  Dim C;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim b = i / C;
    const Dim c = i - b * C;
    float sum[N] = {};
    for (Dim t = 0; t < pooled_rows; ++t) {
      const Dim row = b * tokens + t;
      if (row < first || row >= end) continue;
      const Dim at_row = (row - first) * C + c;
      float value[N];
      load<N>(residual + at_row, value);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += value[k];
      if (delta == nullptr) continue;
      load<N>(delta + at_row, value);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += value[k];
    }
    const float factor = 1.0F / static_cast<float>(pooled_rows);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] *= factor;
    store<N>(pooled + i, sum);
  }
};

/// Element i of the rows here.
template <class T, class D>
struct UnpoolRows {
  static constexpr int kWidth = kVector<T>;
  const D* dpooled;
  T* dx;
  Dim tokens;
  Dim pooled_rows;
  Dim first;
  Dim C;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim here = i / C;
    const Dim c = i - here * C;
    const Dim row = first + here;
    const Dim b = row / tokens;
    float value[N] = {};
    if (row - b * tokens < pooled_rows) {
      load<N>(dpooled + b * C + c, value);
      const float factor = 1.0F / static_cast<float>(pooled_rows);
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] *= factor;
    }
    store<N>(dx + i, value);
  }
};

constexpr int kClassThreads = 256;

template <class T>
struct ClassCall {
  T* logits;
  Dim columns;
  Dim classes;
  const std::int32_t* labels;
  const float* weights;
  float smoothing;
  const StepState* state;  // null: no gradient
  ClassRowLoss* rows;
};

/// The largest of a block's values, in every thread.
__device__ float block_largest(float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float total = scratch[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x / 32); ++warp) {
    total = fmaxf(total, scratch[warp]);
  }
  return total;
}

/// A block for every row.
template <class T>
__global__ void __launch_bounds__(kClassThreads) class_loss_kernel(ClassCall<T> call) {
  __shared__ float scratch[32];
  const Dim b = blockIdx.x;
  T* x = call.logits + b * call.columns;
  const std::int32_t first = call.labels[2 * b];
  const std::int32_t second = call.labels[2 * b + 1];
  const bool writes = call.state != nullptr;
  const bool counts = first >= 0 && first < call.classes && second >= 0 && second < call.classes;
  if (!counts) {
    for (Dim i = threadIdx.x; writes && i < call.columns; i += blockDim.x) x[i] = from_real<T>(0);
    if (threadIdx.x != 0) return;
    // A label that is none spoils the loss, so that it is seen.
    const bool ignored = first == kIgnoredTarget;
    call.rows[b] = ClassRowLoss{ignored ? 0.0F : NAN, ignored ? 0 : 1, 0, 0};
    return;
  }
  const float weight = call.weights[b];
  const std::int32_t label = weight >= 0.5F ? first : second;
  const float at_first = to_real(x[first]);
  const float at_second = to_real(x[second]);
  const float at_label = label == first ? at_first : at_second;
  float largest = -INFINITY;
  float sum = 0;
  float before = 0;
  for (Dim i = threadIdx.x; i < call.classes; i += blockDim.x) {
    const float value = to_real(x[i]);
    largest = fmaxf(largest, value);
    sum += value;
    before += value > at_label || (value == at_label && i < label) ? 1.0F : 0.0F;
  }
  largest = block_largest(largest, scratch);
  sum = block_sum(sum, scratch);
  before = block_sum(before, scratch);
  float exponentials = 0;
  for (Dim i = threadIdx.x; i < call.classes; i += blockDim.x) {
    exponentials += expf(to_real(x[i]) - largest);
  }
  exponentials = block_sum(exponentials, scratch);
  const float s = call.smoothing;
  const float even = sum / static_cast<float>(call.classes);
  if (threadIdx.x == 0) {
    const float target = weight * at_first + (1.0F - weight) * at_second;
    call.rows[b] = ClassRowLoss{largest + logf(exponentials) - (1.0F - s) * target - s * even, 1,
                                before == 0 ? 1 : 0, before < 5 ? 1 : 0};
  }
  if (!writes) return;
  const float scale = call.state->gradient_scale;
  const float factor = scale / exponentials;
  const float share = s / static_cast<float>(call.classes) * scale;
  for (Dim i = threadIdx.x; i < call.columns; i += blockDim.x) {
    float value = 0;
    if (i < call.classes) {
      value = expf(to_real(x[i]) - largest) * factor - share;
      if (i == first) value -= (1.0F - s) * weight * scale;
      if (i == second) value -= (1.0F - s) * (1.0F - weight) * scale;
    }
    x[i] = from_real<T>(value);
  }
}

/// Adds the rows to sums in a fixed order. One block.
__global__ void __launch_bounds__(kClassThreads)
    sum_class_losses_kernel(const ClassRowLoss* rows, Dim count, float* sums) {
  __shared__ double scratch[32];
  double loss = 0;
  double tokens = 0;
  double correct = 0;
  double correct5 = 0;
  for (Dim i = threadIdx.x; i < count; i += blockDim.x) {
    const ClassRowLoss row = rows[i];
    loss += row.loss;
    tokens += row.counts;
    correct += row.correct;
    correct5 += row.correct5;
  }
  loss = block_sum(loss, scratch);
  tokens = block_sum(tokens, scratch);
  correct = block_sum(correct, scratch);
  correct5 = block_sum(correct5, scratch);
  if (threadIdx.x != 0) return;
  sums[kSumLoss] += static_cast<float>(loss);
  sums[kSumTokens] += static_cast<float>(tokens);
  sums[kSumWeights] += static_cast<float>(tokens);
  sums[kSumCorrect] += static_cast<float>(correct);
  sums[kSumCorrect5] += static_cast<float>(correct5);
}

}  // namespace

void patch_tokens_forward(Context& ctx, CView patches, CView class_token, CView positions, View y) {
  with_element(y.dtype(), "patch_tokens_forward", [&]<class T>(T) {
    const auto [B, tokens, C] = y.dims<3>("patch_tokens_forward y");
    const PatchTokens<T> op = {patches.data<T>(),
                               optional_data<T>(class_token),
                               optional_data<T>(positions),
                               y.data<T>(),
                               tokens,
                               class_token ? 1 : 0,
                               C};
    const bool vectors =
        C % kVector<T> == 0 && aligned(op.patches, op.class_token, op.positions, op.y);
    for_each(ctx, "patch_tokens_forward", y, vectors, op);
  });
}

void patch_tokens_backward(Context& ctx, CView dy, Accumulate accumulate, View dpatches,
                           View dclass_token, View dpositions) {
  with_element(dy.dtype(), "patch_tokens_backward", [&]<class T>(T) {
    const auto [B, tokens, C] = dy.dims<3>("patch_tokens_backward dy");
    const PatchTokenGradients<T> op = {dy.data<T>(),
                                       dpatches.data<T>(),
                                       dclass_token,
                                       dpositions,
                                       B,
                                       tokens,
                                       tokens - dpatches.shape()[1],
                                       C,
                                       accumulate == Accumulate::yes};
    const bool vectors = C % kVector<T> == 0 &&
                         aligned(op.dy, op.dpatches, op.dclass_token.data, op.dpositions.data);
    for_each(ctx, "patch_tokens_backward", B * tokens, tokens * C, vectors, op);
  });
}

void sincos2d_table(Context& ctx, Dim grid, View table) {
  with_element(table.dtype(), "sincos2d_table", [&]<class T>(T) {
    const auto [tokens, C] = table.dims<2>("sincos2d_table table");
    const Sincos2d<T> op = {C, tokens - grid * grid, grid, table.data<T>()};
    for_each(ctx, "sincos2d_table", table, false, op);
  });
}

void pool_rows_forward(Context& ctx, const PooledRows& rows, CView residual, CView delta,
                       View pooled) {
  with_element(residual.dtype(), "pool_rows_forward", [&]<class T>(T) {
    const Dim C = residual.shape().back();
    const PoolRows<T> op = {residual.data<T>(),
                            optional_data<T>(delta),
                            pooled.data<float>(),
                            rows.T,
                            rows.pooled(),
                            rows.first,
                            rows.first + residual.numel() / C,
                            C};
    const bool vectors = C % kVector<T> == 0 && aligned(op.residual, op.delta, op.pooled);
    for_each(ctx, "pool_rows_forward", leading(residual.shape()), pooled.numel(), vectors, op);
  });
}

void pool_rows_backward(Context& ctx, const PooledRows& rows, CView dpooled, View dx) {
  with_element(dx.dtype(), "pool_rows_backward", [&]<class T>(T) {
    with_element(dpooled.dtype(), "pool_rows_backward", [&]<class D>(D) {
      const Dim C = dx.shape().back();
      const UnpoolRows<T, D> op = {dpooled.data<D>(), dx.data<T>(), rows.T,
                                   rows.pooled(),     rows.first,   C};
      const bool vectors = C % kVector<T> == 0 && aligned(op.dpooled, op.dx);
      for_each(ctx, "pool_rows_backward", dx, vectors, op);
    });
  });
}

void class_cross_entropy(Context& ctx, const ClassRows& rows, double smoothing,
                         const StepState* state, WithGradient gradient, View sums) {
  constexpr const char* kName = "class_cross_entropy";
  const auto [B, columns] = rows.logits.dims<2>(kName);
  if (B == 0) return;
  auto* losses = static_cast<ClassRowLoss*>(ctx.workspace(kName, class_cross_entropy_workspace(B)));
  cudaStream_t stream = ctx.stream().cuda();
  with_element(rows.logits.dtype(), kName, [&, B = B, columns = columns]<class T>(T) {
    const ClassCall<T> call = {rows.logits.data<T>(),
                               columns,
                               rows.classes,
                               rows.labels.data<std::int32_t>(),
                               rows.weights.data<float>(),
                               static_cast<float>(smoothing),
                               gradient == WithGradient::yes ? state : nullptr,
                               losses};
    class_loss_kernel<<<static_cast<unsigned>(B), kClassThreads, 0, stream>>>(call);
    check_launch(kName);
  });
  sum_class_losses_kernel<<<1, kClassThreads, 0, stream>>>(losses, B, sums.data<float>());
  check_launch(kName);
}

}  // namespace hyperslab::ops::cuda
