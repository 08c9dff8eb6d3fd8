// SPDX-License-Identifier: Apache-2.0
// RMSNorm of single heads: a warp for each. blockIdx.y is 0 for query heads and 1 for key heads.
#include "checks.hpp"
#include "cuda/tools/common.cuh"
#include "cuda/tools/reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;  // warps of a block
constexpr int kLanes = 32;
constexpr int kMostPerLane = 8;  // columns of a lane: heads of up to 256

/// The place of the heads of a kind in qkv.
struct Heads {
  Dim rows;    // B T
  Dim packed;  // elements of a row of qkv
  Dim all;     // query and key heads of a row
  Dim first;   // first head of the kind, among these
  Dim count;   // heads of the kind
  int width;
  [[nodiscard]] __device__ Dim total() const { return rows * count; }
  [[nodiscard]] __device__ Dim row(Dim i) const { return i / count; }
  [[nodiscard]] __device__ Dim head(Dim i) const { return first + i % count; }
};

[[nodiscard]] __device__ Heads heads_here(const HeadLayout& layout, Dim rows) {
  const bool keys = blockIdx.y == 1;
  return {rows,
          (layout.heads + 2 * layout.kv_heads) * layout.head_width,
          layout.heads + layout.kv_heads,
          keys ? layout.heads : 0,
          keys ? layout.kv_heads : layout.heads,
          static_cast<int>(layout.head_width)};
}

template <class T>
struct ForwardCall {
  HeadLayout layout;
  Dim rows;
  const T* query;
  const T* key;
  float eps;
  T* qkv;
  T* kept;      // null: nothing is kept
  float* rstd;  // null: likewise
};

template <class T>
__global__ void __launch_bounds__(kWarps* kLanes) head_norm_forward_kernel(ForwardCall<T> call) {
  overlap();
  wait_for_earlier();
  const Heads heads = heads_here(call.layout, call.rows);
  const T* weight = blockIdx.y == 1 ? call.key : call.query;
  const int lane = static_cast<int>(threadIdx.x);
  for (Dim i = static_cast<Dim>(blockIdx.x) * kWarps + threadIdx.y; i < heads.total();
       i += static_cast<Dim>(gridDim.x) * kWarps) {
    const Dim row = heads.row(i);
    const Dim head = heads.head(i);
    T* x = call.qkv + row * heads.packed + head * heads.width;
    T raw[kMostPerLane];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kMostPerLane; ++k) {
      const int column = lane + k * kLanes;
      if (column >= heads.width) continue;
      raw[k] = x[column];
      squares += to_real(raw[k]) * to_real(raw[k]);
    }
    const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(heads.width) + call.eps);
#pragma unroll
    for (int k = 0; k < kMostPerLane; ++k) {
      const int column = lane + k * kLanes;
      if (column >= heads.width) continue;
      if (call.kept != nullptr) {
        call.kept[(row * heads.all + head) * heads.width + column] = raw[k];
      }
      x[column] = from_real<T>(to_real(raw[k]) * rstd * to_real(weight[column]));
    }
    if (call.rstd != nullptr && lane == 0) call.rstd[row * heads.all + head] = rstd;
  }
}

template <class T>
struct BackwardCall {
  HeadLayout layout;
  Dim rows;
  const T* query;
  const T* key;
  const T* kept;
  const float* rstd;
  T* d;
  float* partial;  // (blocks, ...) sums of dquery, then of dkey
};

/// Adds the warps' sums in order and writes the block's sums.
__device__ inline void write_partial(const float (&sums)[kMostPerLane], int width, float* out) {
  __shared__ float shared[kWarps][kMostPerLane * kLanes];
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kMostPerLane; ++k) shared[threadIdx.y][lane + k * kLanes] = sums[k];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.y) * kLanes + lane; column < width;
       column += kWarps * kLanes) {
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += shared[warp][column];
    out[column] = total;
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps* kLanes) head_norm_backward_kernel(BackwardCall<T> call) {
  overlap();
  wait_for_earlier();
  const Heads heads = heads_here(call.layout, call.rows);
  const T* weight = blockIdx.y == 1 ? call.key : call.query;
  const int lane = static_cast<int>(threadIdx.x);
  float sums[kMostPerLane] = {};
  for (Dim i = static_cast<Dim>(blockIdx.x) * kWarps + threadIdx.y; i < heads.total();
       i += static_cast<Dim>(gridDim.x) * kWarps) {
    const Dim row = heads.row(i);
    const Dim head = heads.head(i);
    const T* x = call.kept + (row * heads.all + head) * heads.width;
    T* d = call.d + row * heads.packed + head * heads.width;
    const float rstd = call.rstd[row * heads.all + head];
    float normalized[kMostPerLane];
    float g[kMostPerLane];
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kMostPerLane; ++k) {
      const int column = lane + k * kLanes;
      if (column >= heads.width) continue;
      const float dy = to_real(d[column]);
      normalized[k] = to_real(x[column]) * rstd;
      g[k] = dy * to_real(weight[column]);
      dot += g[k] * normalized[k];
      sums[k] += dy * normalized[k];
    }
    const float mean = warp_sum(dot) / static_cast<float>(heads.width);
#pragma unroll
    for (int k = 0; k < kMostPerLane; ++k) {
      const int column = lane + k * kLanes;
      if (column < heads.width) d[column] = from_real<T>(rstd * (g[k] - normalized[k] * mean));
    }
  }
  const Dim parts = Dim{2} * heads.width;
  write_partial(sums, heads.width,
                call.partial + blockIdx.x * parts + blockIdx.y * Dim{heads.width});
}

[[nodiscard]] Grid grid_of(const HeadLayout& layout, Dim rows) {
  return {dim3(static_cast<unsigned>(head_norm_blocks(layout, rows)), 2), dim3(kLanes, kWarps)};
}

void require_width(const HeadLayout& layout) {
  require(layout.head_width <= kMostPerLane * kLanes,
          "head_norm: heads on a GPU have at most 256 features");
}

}  // namespace

void head_norm_forward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                       View qkv, const HeadNormSaved& saved) {
  constexpr const char* kName = "head_norm_forward";
  require_width(layout);
  const Dim rows = leading(qkv.shape());
  if (rows == 0) return;
  with_element(qkv.dtype(), kName, [&]<class T>(T) {
    const ForwardCall<T> call = {layout,
                                 rows,
                                 weights.query.data<T>(),
                                 weights.key.data<T>(),
                                 weights.eps,
                                 qkv.data<T>(),
                                 optional_data<T>(saved.heads),
                                 optional_data<float>(saved.rstd)};
    launch_waiting(ctx, kName, rows, head_norm_forward_kernel<T>, grid_of(layout, rows), call);
  });
}

void head_norm_backward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                        const HeadNormSaved& saved, View dqkv, const HeadNormGradients& gradients) {
  constexpr const char* kName = "head_norm_backward";
  require_width(layout);
  const Dim rows = leading(dqkv.shape());
  auto* partial = static_cast<float*>(ctx.partials(kName, head_norm_partials(layout, rows)));
  with_element(dqkv.dtype(), kName, [&]<class T>(T) {
    const BackwardCall<T> call = {layout,
                                  rows,
                                  weights.query.data<T>(),
                                  weights.key.data<T>(),
                                  saved.heads.data<T>(),
                                  saved.rstd.data<float>(),
                                  dqkv.data<T>(),
                                  partial};
    launch_waiting(ctx, kName, rows, head_norm_backward_kernel<T>, grid_of(layout, rows), call);
  });
  if (!gradients.query) return;  // frozen
  sum_partials(ctx, kName,
               {.rows = rows,
                .partial = partial,
                .parts = head_norm_blocks(layout, rows),
                .stride = 2 * layout.head_width,
                .C = layout.head_width,
                .accumulate = gradients.accumulate == Accumulate::yes,
                .out = {gradients.query, gradients.key}});
}

}  // namespace hyperslab::ops::cuda
