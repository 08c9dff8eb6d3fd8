// SPDX-License-Identifier: Apache-2.0
#include "backward_ring.cuh"
#include "checks.hpp"
#include "cuda/tools/handles.hpp"
#include "cuda/tools/reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

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
template <int N, int K, bool kCentered, NormSums kSums, int kThreads, int kBlocks, class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    norm_backward_kernel(NormBackwardCall<T> call) {
  __shared__ float2 scratch[2][32];
  overlap();
  wait_for_earlier();
  NormColumns<N, K, kCentered, kSums, T> columns(call);
  int turn = 0;
  for (Dim first = static_cast<Dim>(blockIdx.x) * blockDim.y; first < call.rows;
       first += static_cast<Dim>(gridDim.x) * blockDim.y) {
    const Dim at = first + threadIdx.y;
    const bool live = at < call.rows;
    const Dim offset = at * call.C;
    NormRow<N, K, T> row;
    float2 sums = {0, 0};
    if (live) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const Dim column = columns.column(k);
        if (column >= call.C) continue;
        row.dy[k].load(call.dy + offset + column);
        row.x[k].load(call.x + offset + column);
        if (call.accumulate) row.old[k].load(call.dx + offset + column);
      }
      if (kCentered) row.mean = call.mean[at];
      row.rstd = call.rstd[at];
      sums = columns.read(call, row);
    }
    sums = row_sums(sums, scratch[turn]);
    turn ^= 1;
    if (live) columns.write(call, row, sums, call.dx + offset);
  }
  if constexpr (kSums != NormSums::none) {
    write_partials(columns.total, call.C, call.partial + blockIdx.x * count_of(kSums) * call.C);
  }
}

/// Without sums to keep, a block takes one row of each of its groups. The bounds leave registers
/// for a thread's elements of a row; 1,024 threads, and centered rows of 4,096, spill some.
template <int N, bool kCentered, class T>
void launch_frozen(Context& ctx, const NormBackwardCall<T>& call, const NormBackwardShape& shape) {
  if (call.rows == 0) return;
  const dim3 threads(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.groups));
  const auto blocks = static_cast<unsigned>(ceil_divide(call.rows, Dim{shape.groups}));
  const auto run = [&](void (*kernel)(NormBackwardCall<T>)) {
    launch_waiting(ctx, "norm_backward", call.rows, kernel, {blocks, threads}, call);
  };
  constexpr int K = 8 / N;
  if (shape.held == 8) {
    run(norm_backward_kernel<N, K, kCentered, NormSums::none, 256, 4, T>);
  } else if (shape.threads <= 256) {
    run(norm_backward_kernel<N, 2 * K, kCentered, NormSums::none, 256, 3, T>);
  } else if (shape.threads <= 512) {
    run(norm_backward_kernel<N, 2 * K, kCentered, NormSums::none, 512, 1, T>);
  } else {
    run(norm_backward_kernel<N, 2 * K, kCentered, NormSums::none, 1024, 1, T>);
  }
}

/// With sums to keep. The stream's sums leave registers for fewer blocks at once, as
/// norm_backward_shape counts them.
template <int N, bool kCentered, NormSums kSums, class T>
void launch_sums(Context& ctx, const NormBackwardCall<T>& call, const NormBackwardShape& shape) {
  const dim3 threads(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.groups));
  const auto blocks = static_cast<unsigned>(shape.blocks);
  const std::size_t shared =
      shape.groups == 1 ? 0 : static_cast<std::size_t>(count_of(kSums) * call.C) * sizeof(float);
  const auto run = [&](void (*kernel)(NormBackwardCall<T>)) {
    launch_waiting(ctx, "norm_backward", call.rows, kernel, {blocks, threads, shared}, call);
  };
  constexpr int K = 8 / N;
  constexpr int kBlocksOf8 = kSums == NormSums::weights ? 4 : 3;
  constexpr int kBlocksOf16 = kSums == NormSums::weights ? 2 : 1;
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

template <int K, bool kCentered, NormSums kSums, class T>
void launch_ring(Context& ctx, const NormBackwardCall<T>& call, const NormRing& ring) {
  constexpr auto kKernel =
      norm_backward_ring_kernel<K, kCentered, kSums, NormRing::most_threads(K), T>;
  [[maybe_unused]] static const bool asked = [] {
    check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    NormRing::kSharedBytes),
               "norm_backward", "cudaFuncSetAttribute");
    return true;
  }();
  const dim3 threads(static_cast<unsigned>(ring.threads), static_cast<unsigned>(ring.groups));
  launch_waiting(ctx, "norm_backward", call.rows, kKernel,
                 {static_cast<unsigned>(ring.blocks), threads, NormRing::kSharedBytes}, call,
                 ring.stages);
}

template <bool kCentered, NormSums kSums, class T>
int launch_ring(Context& ctx, const NormBackwardCall<T>& call, const NormBackwardShape& shape) {
  const NormRing ring(shape, static_cast<int>(call.C), call.accumulate);
  if (shape.held == 8) {
    launch_ring<1, kCentered, kSums>(ctx, call, ring);
  } else {
    launch_ring<2, kCentered, kSums>(ctx, call, ring);
  }
  return ring.blocks;
}

/// True if vectors of 16-bit rows come through a ring: all of a row's warps find room.
bool suits_ring(Dim rows, const NormBackwardShape& shape) {
  return rows > 0 && shape.threads <= NormRing::most_threads(2) && compute_capability() >= 90;
}

/// Returns how many partial sums there are.
template <int N, bool kCentered, NormSums kSums, class T>
int launch_rows(Context& ctx, const NormBackwardCall<T>& call) {
  const auto shape = norm_backward_shape(call.rows, call.C, kSums == NormSums::weights_and_stream);
  if constexpr (N > 1 && sizeof(T) == 2) {
    if (suits_ring(call.rows, shape)) return launch_ring<kCentered, kSums>(ctx, call, shape);
  }
  if constexpr (kSums == NormSums::none) {
    launch_frozen<N, kCentered>(ctx, call, shape);
  } else {
    launch_sums<N, kCentered, kSums>(ctx, call, shape);
  }
  return shape.blocks;
}

template <int N, bool kCentered, class T>
int launch_rows(Context& ctx, const NormBackwardCall<T>& call, NormSums sums) {
  switch (sums) {
    case NormSums::none: return launch_rows<N, kCentered, NormSums::none>(ctx, call);
    case NormSums::weights: return launch_rows<N, kCentered, NormSums::weights>(ctx, call);
    case NormSums::weights_and_stream: break;
  }
  return launch_rows<N, kCentered, NormSums::weights_and_stream>(ctx, call);
}

template <bool kCentered, class T>
int launch_rows(Context& ctx, const NormBackwardCall<T>& call, NormSums sums) {
  constexpr int N = kVector<T>;
  if (call.C % N == 0 && aligned(call.dy, call.x, call.weight, call.dx)) {
    return launch_rows<N, kCentered>(ctx, call, sums);
  }
  return launch_rows<1, kCentered>(ctx, call, sums);
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
  const NormSums sums = stream   ? NormSums::weights_and_stream
                        : trains ? NormSums::weights
                                 : NormSums::none;
  auto* partial =
      trains ? static_cast<float*>(ctx.partials(kName, norm_backward_partials(rows, C, stream)))
             : nullptr;
  int parts = 0;
  with_element(dy.dtype(), kName, [&]<class T>(T) {
    const NormBackwardCall<T> call = {rows,
                                      C,
                                      dy.data<T>(),
                                      saved.sum.data<T>(),
                                      saved.weight.data<T>(),
                                      centered ? saved.mean.data<float>() : nullptr,
                                      saved.rstd.data<float>(),
                                      gradients.dsum.data<T>(),
                                      gradients.accumulate_input == Accumulate::yes,
                                      partial};
    parts = centered ? launch_rows<true>(ctx, call, sums) : launch_rows<false>(ctx, call, sums);
  });
  if (!trains) return;
  sum_partials(ctx, kName,
               {.rows = rows,
                .partial = partial,
                .parts = parts,
                .stride = count_of(sums) * C,
                .C = C,
                .accumulate = gradients.accumulate_weight == Accumulate::yes,
                .out = {gradients.dweight, centered ? gradients.dbias : View(),
                        gradients.arriving_sums, gradients.leaving_sums}});
}

}  // namespace hyperslab::ops::cuda
