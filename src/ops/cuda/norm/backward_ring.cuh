// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backward_rows.cuh"
#include "cuda/tools/tma.cuh"

// The gradient of norms of rows that come through shared memory. A multiprocessor has one block,
// whose groups of warps take a row each. A thread of each group asks the copy engine for the
// group's rows as far ahead as a ring of them has room, so that no warp waits for memory, and a
// block leaves one partial sum however many groups it has.

namespace hyperslab::ops::cuda {

/// The split of a block and its shared memory for rows of 16-bit elements.
struct NormRing {
  static constexpr int kMostGroups = 24;  // groups of one warp each
  static constexpr int kMostStages = 16;
  static constexpr int kSharedBytes = 216 * 1024;
  /// Threads of a block, at most, that hold K vectors of a row each: their sums are in registers.
  [[nodiscard]] static constexpr int most_threads(int K) { return K == 1 ? 768 : 512; }

  int threads;  ///< threads that share a row
  int groups;
  int stages;
  int blocks;

  NormRing(const NormBackwardShape& shape, int C, bool accumulate)
      : threads(shape.threads),
        groups(most_threads(shape.held / 8) / shape.threads),
        stages(std::min(kMostStages, kSharedBytes / groups / ((accumulate ? 3 : 2) * 2 * C))),
        blocks(std::min(kReferenceMultiprocessors, shape.blocks)) {}
};

struct NormRingShared {
  std::uint64_t full[NormRing::kMostGroups][NormRing::kMostStages];
  float2 sums[2][NormRing::kMostGroups];  // a warp each
};

/// The ring of a group of warps.
template <int N, int K, class T>
class NormRowRing {
 public:
  __device__ NormRowRing(const NormBackwardCall<T>& call, unsigned char* memory,
                         NormRingShared& shared, int stages)
      : call_(call),
        row_bytes_(static_cast<unsigned>(call.C) * sizeof(T)),
        stage_bytes_((call.accumulate ? 3 : 2) * row_bytes_),
        memory_(memory + threadIdx.y * stages * stage_bytes_),
        full_(shared.full[threadIdx.y]),
        stages_(stages) {}

  /// One thread: the first rows that the ring has room for.
  __device__ void fill() {
    for (int stage = 0; stage < stages_; ++stage) load(row_ + stage * step(), stage);
  }
  [[nodiscard]] __device__ bool ended() const { return row_ >= call_.rows; }
  [[nodiscard]] __device__ Dim row() const { return row_; }

  /// The row that is next in turn.
  __device__ void read(NormRow<N, K, T>& to) const {
    tma::wait(&full_[stage_], phase_);
    const T* stage = reinterpret_cast<const T*>(memory_ + stage_ * stage_bytes_);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const Dim column = static_cast<Dim>(threadIdx.x + k * blockDim.x) * N;
      if (column >= call_.C) continue;
      to.dy[k].load(stage + column);
      to.x[k].load(stage + call_.C + column);
      if (call_.accumulate) to.old[k].load(stage + 2 * call_.C + column);
    }
  }
  /// All threads of the group, after all have read the row: another comes in its place.
  __device__ void advance() {
    if (threadIdx.x == 0) load(row_ + stages_ * step(), stage_);
    row_ += step();
    if (++stage_ < stages_) return;
    stage_ = 0;
    phase_ ^= 1U;
  }
  /// From a row of the group to the next.
  [[nodiscard]] __device__ static Dim step() { return static_cast<Dim>(gridDim.x) * blockDim.y; }

 private:
  __device__ void load(Dim row, int stage) {
    if (row >= call_.rows) return;
    std::uint64_t* full = &full_[stage];
    unsigned char* to = memory_ + stage * stage_bytes_;
    const Dim offset = row * call_.C;
    tma::arrive_for(full, stage_bytes_);
    tma::copy(to, call_.dy + offset, row_bytes_, full);
    tma::copy(to + row_bytes_, call_.x + offset, row_bytes_, full);
    if (call_.accumulate) {
      tma::copy(to + 2 * row_bytes_, call_.dx + offset, row_bytes_, full);
    }
  }

  const NormBackwardCall<T>& call_;
  const unsigned row_bytes_;
  const unsigned stage_bytes_;
  unsigned char* memory_;
  std::uint64_t* full_;
  const int stages_;
  Dim row_ = static_cast<Dim>(threadIdx.y) * gridDim.x + blockIdx.x;
  int stage_ = 0;
  unsigned phase_ = 0;
};

/// Sums over the row of a group of warps, which all its threads have read when this returns. Two
/// scratches take turns, so that one barrier per row is enough.
__device__ inline float2 group_sums(float2 value, float2* scratch) {
  value.x = warp_sum(value.x);
  value.y = warp_sum(value.y);
  if (blockDim.x == 32) {
    __syncwarp();  // all lanes have read the row, of which they summed a part
    return value;
  }
  float2* of_group = scratch + threadIdx.y * (blockDim.x / 32);
  if (threadIdx.x % 32 == 0) of_group[threadIdx.x / 32] = value;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.y), "r"(blockDim.x) : "memory");
  float2 total = of_group[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    total.x += of_group[warp].x;
    total.y += of_group[warp].y;
  }
  return total;
}

/// Adds the sums of the block's groups in order and writes them to its partial sums.
template <int S, int N, int K>
__device__ void write_group_partials(const float (&of_thread)[S][K][N], Dim C, float* of_groups,
                                     float* partial) {
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const Dim column = static_cast<Dim>(threadIdx.x + k * blockDim.x) * N;
    if (column >= C) continue;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      float* to = of_groups + (threadIdx.y * S + s) * C + column;
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = of_thread[s][k][i];
    }
  }
  __syncthreads();
  const Dim thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (Dim i = thread; i < S * C; i += blockDim.x * blockDim.y) {
    float sum = of_groups[i];
    for (unsigned group = 1; group < blockDim.y; ++group) sum += of_groups[group * S * C + i];
    partial[i] = sum;
  }
}

/// Rows threadIdx.y * gridDim.x + blockIdx.x and so on by the number of groups in the grid.
template <int K, bool kCentered, NormSums kSums, int kThreads, class T>
__global__ void __launch_bounds__(kThreads, 1)
    norm_backward_ring_kernel(const __grid_constant__ NormBackwardCall<T> call, int stages) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ NormRingShared shared;
  constexpr int N = kVector<T>;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) tma::init(&shared.full[threadIdx.y][i], 1);
    tma::publish_init();
  }
  __syncthreads();
  overlap();
  wait_for_earlier();
  NormRowRing<N, K, T> ring(call, memory, shared, stages);
  if (threadIdx.x == 0) ring.fill();
  NormColumns<N, K, kCentered, kSums, T> columns(call);
  const auto mean_of = [&](Dim row) {
    return kCentered && row < call.rows ? call.mean[row] : 0.0F;
  };
  const auto rstd_of = [&](Dim row) { return row < call.rows ? call.rstd[row] : 0.0F; };
  float next_mean = mean_of(ring.row());
  float next_rstd = rstd_of(ring.row());
  for (int turn = 0; !ring.ended(); turn ^= 1) {
    NormRow<N, K, T> row;
    row.mean = next_mean;
    row.rstd = next_rstd;
    next_mean = mean_of(ring.row() + ring.step());
    next_rstd = rstd_of(ring.row() + ring.step());
    T* to = call.dx + ring.row() * call.C;
    ring.read(row);
    const float2 sums = group_sums(columns.read(call, row), shared.sums[turn]);
    ring.advance();
    columns.write(call, row, sums, to);
  }
  if constexpr (kSums != NormSums::none) {
    write_group_partials(columns.total, call.C, reinterpret_cast<float*>(memory),
                         call.partial + blockIdx.x * count_of(kSums) * call.C);
  }
}

}  // namespace hyperslab::ops::cuda
