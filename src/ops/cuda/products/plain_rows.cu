// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "cuda/tools/activation.cuh"
#include "matrix_vector.hpp"
#include "weight_ring.cuh"

// Few rows of x by 16-bit weights, which the tensor cores multiply as they lie in the ring: lane
// 4 g + t takes neighboring columns of rows g and g + 8 of a tile (tools/mma.cuh).

namespace hyperslab::ops::cuda {
namespace {

constexpr int kProducts = 128;  // products of a tile with eight rows of x
using Ring = WeightRing<false>;
static_assert(Ring::kBytes + 2 * kRingWarps * kProducts * 4 + 1024 <= kRingShared);

template <class T>
struct PlainRows {
  RingSource source;
  const T* x;
  const T* bias;
  T* y;
  int rows;
  Dim K;
  Activation activation;  ///< activation of a gated source
};

/// A lane's 16 bytes of its row of x that belong to a piece.
template <class T>
__device__ uint4 input_of(const PlainRows<T>& call, int piece) {
  const RingLane lane;
  const Dim k = (static_cast<Dim>(piece) * kRingPiece + lane.in_piece()) / 2;
  if (lane.g >= call.rows || k >= call.K) return {0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(call.x + lane.g * call.K + k);
}

/// Adds the products of a stage.
template <class T>
__device__ void add_stage(const std::uint8_t* stage, uint4 x, float (&sum)[4]) {
  const RingLane lane;
  std::uint32_t low[4];
  std::uint32_t high[4];
  load_words(stage + lane.g * kRingPiece + lane.in_piece(), low);
  load_words(stage + (lane.g + kRingBox) * kRingPiece + lane.in_piece(), high);
  multiply_add<T>(sum, {low[0], high[0], low[1], high[1]}, x.x, x.y);
  multiply_add<T>(sum, {low[2], high[2], low[3], high[3]}, x.z, x.w);
}

/// The sums of a tile over warps, in their order, and its elements of y.
template <class T>
__device__ void finish_tile(const PlainRows<T>& call, int tile, const float (&sum)[4],
                            float (&partial)[kRingWarps][kProducts]) {
  const RingLane lane;
  *reinterpret_cast<float4*>(&partial[lane.warp][lane.index * 4]) = {sum[0], sum[1], sum[2],
                                                                     sum[3]};
  sync_readers();
  // Elements 4 i to 4 i + 3 are of rows g, g, g + 8, g + 8 and of rows n, n + 1, n, n + 1 of x.
  const auto i = static_cast<int>(threadIdx.x);
  const int box = i % 4 / 2;
  const int n = i / 4 % 4 * 2 + i % 2;
  if (i >= kProducts || n >= call.rows || (call.source.gated && box == 1)) return;
  const int g = i / 16;
  const int m = call.source.row(tile, box) + g;
  if (m >= call.source.M) return;
  float total = 0;
  for (int warp = 0; warp < kRingWarps; ++warp) total += partial[warp][i];
  total = with_bias(total, call.bias, m);
  int width = call.source.M;
  if (call.source.gated) {
    float up = 0;
    for (int warp = 0; warp < kRingWarps; ++warp) up += partial[warp][i + 2];
    width /= 2;
    total = gated<T>(call.activation, total, with_bias(up, call.bias, m + width));
  }
  call.y[static_cast<Dim>(n) * width + m] = from_real<T>(total);
}

/// A block takes tiles gridDim.x apart; its last warp fills the ring.
template <class T>
__global__ void __launch_bounds__(kRingThreads, 1)
    plain_rows_kernel(const __grid_constant__ PlainRows<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ Ring::Barriers barriers;
  __shared__ float partial[2][kRingWarps][kProducts];  // by turns, so that a tile needs one barrier
  overlap();
  Ring ring(shared, barriers);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x >= kRingReaders) {
    if (threadIdx.x == kRingReaders) ring.fill(call.source);
    return;
  }
  wait_for_earlier();
  const int pieces = call.source.pieces();
  uint4 x = input_of(call, 0);
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < call.source.tiles();
       tile += static_cast<int>(gridDim.x), turn ^= 1) {
    float sum[4] = {};
    for (int piece = 0; piece < pieces; ++piece) {
      const std::uint8_t* stage = ring.next();
      const uint4 now = x;
      x = input_of(call, piece + 1 < pieces ? piece + 1 : 0);
      add_stage<T>(stage, now, sum);
      ring.release();
    }
    finish_tile(call, tile, sum, partial[turn]);
  }
#endif
}

}  // namespace

void plain_rows(Context& ctx, CView x, CView weight, CView bias, const RowsOutput& out) {
  const auto [M, K] = weight.dims<2>("linear_forward weight");
  with_element(x.dtype(), "linear_forward", [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      const PlainRows<T> call = {ring_source("linear_forward", weight.raw(), M, 2 * K, out.gated),
                                 x.data<T>(),
                                 optional_data<T>(bias),
                                 out.y.data<T>(),
                                 static_cast<int>(leading(x.shape())),
                                 K,
                                 out.activation};
      launch_ring(ctx, "linear_forward", plain_rows_kernel<T>, Ring::kBytes, call.source.tiles(),
                  call);
    }
  });
}

void linear_by_plain_rows(Context& ctx, CView x, CView weight, CView bias,
                          Accumulate /*accumulate*/, View y) {
  plain_rows(ctx, x, weight, bias, {y});
}

}  // namespace hyperslab::ops::cuda
