// SPDX-License-Identifier: Apache-2.0
#include "../checks.hpp"
#include "kernels_common.cuh"
#include "reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

template <class T>
struct BackwardCall {
  Dim rows;
  Dim C;
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  bool accumulate;
  /// Per block C sums each of dweight, dbias and, with Sums::weights_and_stream, of dx as it
  /// arrives and as it leaves; null: frozen.
  float* partial;
};

/// Which sums over rows are kept.
enum class Sums : std::uint8_t { none, weights, weights_and_stream };
constexpr int count_of(Sums sums) { return sums == Sums::weights_and_stream ? 4 : 2; }

/// Sums of two values over one row, whose threads are whole warps of the block. Two scratches take
/// turns, so that one barrier per row is enough.
__device__ float2 row_sums(float2 value, float2* scratch) {
  value.x = warp_sum(value.x);
  value.y = warp_sum(value.y);
  if (blockDim.x == 32) return value;
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (thread % 32 == 0) scratch[thread / 32] = value;
  __syncthreads();
  const unsigned first = threadIdx.y * (blockDim.x / 32);
  float2 total = scratch[first];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    total.x += scratch[first + warp].x;
    total.y += scratch[first + warp].y;
  }
  return total;
}

/// Adds the sums of the block's row groups in order and writes them to its partial sums.
template <int S, int N, int K>
__device__ void write_partials(const float (&of_thread)[S][K][N], Dim C, float* partial) {
  extern __shared__ float sums[];
  float* out = blockDim.y == 1 ? partial : sums;
  for (unsigned group = 0; group < blockDim.y; ++group) {
    if (threadIdx.y == group) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const Dim column = static_cast<Dim>(threadIdx.x + k * blockDim.x) * N;
        if (column >= C) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
          for (int s = 0; s < S; ++s) {
            float& total = out[s * C + column + i];
            total = (group == 0 ? 0.0F : total) + of_thread[s][k][i];
          }
        }
      }
    }
    __syncthreads();
  }
  if (blockDim.y == 1) return;
  const Dim thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (Dim i = thread; i < S * C; i += blockDim.x * blockDim.y) partial[i] = sums[i];
}

/// Rows blockIdx.x * blockDim.y + threadIdx.y and so on by the size of the grid. A thread owns the
/// same columns in all rows and adds up their sums in registers.
template <int N, int K, bool kCentered, Sums kSums, int kThreads, int kBlocks, class T>
__global__ void __launch_bounds__(kThreads, kBlocks) norm_backward_kernel(BackwardCall<T> call) {
  __shared__ float2 scratch[2][32];
  const auto column = [&](int k) { return static_cast<Dim>(threadIdx.x + k * blockDim.x) * N; };
  constexpr bool kWeights = kSums != Sums::none;
  constexpr bool kStream = kSums == Sums::weights_and_stream;
  float total[count_of(kSums)][K][N] = {};  // dweight, dbias, arriving, leaving
  overlap();
  wait_for_earlier();
  Vec<T, N> weight[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) < call.C) weight[k] = load_raw<N>(call.weight + column(k));
  }
  int turn = 0;
  for (Dim first = static_cast<Dim>(blockIdx.x) * blockDim.y; first < call.rows;
       first += static_cast<Dim>(gridDim.x) * blockDim.y) {
    const Dim row = first + threadIdx.y;
    const bool live = row < call.rows;
    const Dim offset = row * call.C;
    Vec<T, N> dy[K];
    Vec<T, N> x[K];
    Vec<T, N> old[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!live || column(k) >= call.C) continue;
      dy[k] = load_raw<N>(call.dy + offset + column(k));
      x[k] = load_raw<N>(call.x + offset + column(k));
      if (call.accumulate) old[k] = load_raw<N>(call.dx + offset + column(k));
    }
    const float mean = kCentered && live ? call.mean[row] : 0.0F;
    const float rstd = live ? call.rstd[row] : 0.0F;
    float2 sums = {0, 0};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!live || column(k) >= call.C) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (to_real(x[k].at[i]) - mean) * rstd;
        const float gradient = to_real(dy[k].at[i]);
        const float g = gradient * to_real(weight[k].at[i]);
        sums.x += g * normalized;
        sums.y += g;
        if constexpr (kWeights) total[0][k][i] += gradient * normalized;
        if constexpr (kWeights && kCentered) total[1][k][i] += gradient;
      }
    }
    sums = row_sums(sums, scratch[turn]);
    turn ^= 1;
    const float mean_dot = sums.x / static_cast<float>(call.C);
    const float mean_g = kCentered ? sums.y / static_cast<float>(call.C) : 0.0F;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!live || column(k) >= call.C) continue;
      float dx[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (to_real(x[k].at[i]) - mean) * rstd;
        const float g = to_real(dy[k].at[i]) * to_real(weight[k].at[i]);
        dx[i] = rstd * (g - mean_g - normalized * mean_dot);
        if (call.accumulate) dx[i] += to_real(old[k].at[i]);
        if constexpr (kStream) {
          total[2][k][i] += to_real(old[k].at[i]);
          total[3][k][i] += to_real(from_real<T>(dx[i]));  // as it is stored
        }
      }
      store<N>(call.dx + offset + column(k), dx);
    }
  }
  if constexpr (kWeights) {
    write_partials(total, call.C, call.partial + blockIdx.x * count_of(kSums) * call.C);
  }
}

/// Without sums to keep, a block takes one row of each of its groups. The bounds leave registers
/// for what a thread holds of a row; 1,024 threads, and centered rows of 4,096, spill some.
template <int N, bool kCentered, class T>
void launch_frozen(Context& ctx, const BackwardCall<T>& call, const NormBackwardShape& shape) {
  if (call.rows == 0) return;
  const dim3 threads(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.groups));
  const auto blocks = static_cast<unsigned>(ceil_divide(call.rows, Dim{shape.groups}));
  const auto run = [&](void (*kernel)(BackwardCall<T>)) {
    launch_waiting(ctx, "norm_backward", call.rows, kernel, {blocks, threads}, call);
  };
  constexpr int K = 8 / N;
  if (shape.held == 8) {
    run(norm_backward_kernel<N, K, kCentered, Sums::none, 256, 4, T>);
  } else if (shape.threads <= 256) {
    run(norm_backward_kernel<N, 2 * K, kCentered, Sums::none, 256, 3, T>);
  } else if (shape.threads <= 512) {
    run(norm_backward_kernel<N, 2 * K, kCentered, Sums::none, 512, 1, T>);
  } else {
    run(norm_backward_kernel<N, 2 * K, kCentered, Sums::none, 1024, 1, T>);
  }
}

/// With sums to keep. Those of the stream leave registers for fewer blocks at once, as
/// norm_backward_shape counts them.
template <int N, bool kCentered, Sums kSums, class T>
void launch_sums(Context& ctx, const BackwardCall<T>& call, const NormBackwardShape& shape) {
  const dim3 threads(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.groups));
  const auto blocks = static_cast<unsigned>(shape.blocks);
  const std::size_t shared =
      shape.groups == 1 ? 0 : static_cast<std::size_t>(count_of(kSums) * call.C) * sizeof(float);
  const auto run = [&](void (*kernel)(BackwardCall<T>)) {
    launch_waiting(ctx, "norm_backward", call.rows, kernel, {blocks, threads, shared}, call);
  };
  constexpr int K = 8 / N;
  constexpr int kBlocksOf8 = kSums == Sums::weights ? 4 : 3;
  constexpr int kBlocksOf16 = kSums == Sums::weights ? 2 : 1;
  if (shape.held == 8) {
    run(norm_backward_kernel<N, K, kCentered, kSums, 256, kBlocksOf8, T>);
  } else if (shape.threads <= 256) {
    run(norm_backward_kernel<N, 2 * K, kCentered, kSums, 256, kBlocksOf16, T>);
  } else if (shape.threads <= 512) {
    run(norm_backward_kernel<N, 2 * K, kCentered, kSums, 512, 1, T>);
  } else {
    run(norm_backward_kernel<N, 2 * K, kCentered, kSums, 1024, 1, T>);
  }
}

template <int N, bool kCentered, class T>
void launch_rows(Context& ctx, const BackwardCall<T>& call, Sums sums) {
  const bool stream = sums == Sums::weights_and_stream;
  const NormBackwardShape shape = norm_backward_shape(call.rows, call.C, stream);
  switch (sums) {
    case Sums::none: return launch_frozen<N, kCentered>(ctx, call, shape);
    case Sums::weights: return launch_sums<N, kCentered, Sums::weights>(ctx, call, shape);
    case Sums::weights_and_stream:
      return launch_sums<N, kCentered, Sums::weights_and_stream>(ctx, call, shape);
  }
}

template <bool kCentered, class T>
void launch_rows(Context& ctx, const BackwardCall<T>& call, Sums sums) {
  constexpr int N = kVector<T>;
  if (call.C % N == 0 && aligned(call.dy, call.x, call.weight, call.dx)) {
    launch_rows<N, kCentered>(ctx, call, sums);
  } else {
    launch_rows<1, kCentered>(ctx, call, sums);
  }
}

void copy_or_add(Context& ctx, CView dy, Accumulate accumulate, View dsum) {
  if (accumulate == Accumulate::yes) return add(ctx, dsum, dy, dsum);
  cast(ctx, dy, dsum);
}

}  // namespace

void norm_backward(Context& ctx, NormKind kind, CView dy, const NormSaved& saved,
                   const NormGradients& gradients) {
  constexpr const char* kName = "norm_backward";
  if (kind == NormKind::none)
    return copy_or_add(ctx, dy, gradients.accumulate_input, gradients.dsum);
  const Dim C = dy.shape().back();
  const Dim rows = leading(dy.shape());
  if (C == 0) return;
  require(C <= kMaxNormWidth, "norm_backward: rows on a GPU are at most 16384 wide");
  const bool centered = kind == NormKind::layernorm;
  const auto trains = static_cast<bool>(gradients.dweight);
  const auto stream = static_cast<bool>(gradients.arriving_sums);
  const Sums sums = stream ? Sums::weights_and_stream : trains ? Sums::weights : Sums::none;
  auto* partial =
      trains ? static_cast<float*>(ctx.workspace(kName, norm_backward_workspace(rows, C, stream)))
             : nullptr;
  with_element(dy.dtype(), kName, [&]<class T>(T) {
    const BackwardCall<T> call = {rows,
                                  C,
                                  dy.data<T>(),
                                  saved.sum.data<T>(),
                                  saved.weight.data<T>(),
                                  centered ? saved.mean.data<float>() : nullptr,
                                  saved.rstd.data<float>(),
                                  gradients.dsum.data<T>(),
                                  gradients.accumulate_input == Accumulate::yes,
                                  partial};
    if (centered) {
      launch_rows<true>(ctx, call, sums);
    } else {
      launch_rows<false>(ctx, call, sums);
    }
  });
  if (!trains) return;
  sum_partials(ctx, kName,
               {.rows = rows,
                .partial = partial,
                .parts = norm_backward_shape(rows, C, stream).blocks,
                .stride = count_of(sums) * C,
                .C = C,
                .accumulate = gradients.accumulate_weight == Accumulate::yes,
                .out = {gradients.dweight.data<float>(),
                        centered ? optional_data<float>(gradients.dbias) : nullptr,
                        optional_data<float>(gradients.arriving_sums),
                        optional_data<float>(gradients.leaving_sums)}});
}

}  // namespace hyperslab::ops::cuda
