// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/tools/fast.cuh"
#include "cuda/tools/words.cuh"
#include "loss_stream.cuh"

// The loss with gradients of rows of 16-bit logits that a stream brings: its computations.

namespace hyperslab::ops::cuda {

/// e^(x - largest) as a power of 2, from a reference that is the largest logit times log2 e,
/// rounded.
struct StreamPower {
  [[nodiscard]] __device__ static float reference(float top) {
    return top == -INFINITY ? 0.0F : top * kLog2E;
  }
  [[nodiscard]] __device__ static float of(float x, float reference) {
    return power_of_2(fmaf(x, kLog2E, -reference));
  }
  [[nodiscard]] __device__ static float between(float reference, float larger) {
    return power_of_2(reference - larger);
  }
  /// The ratio of powers from the largest logit itself to those from the rounded reference.
  [[nodiscard]] __device__ static float rounding(float top, float reference) {
    return power_of_2(-fmaf(top, kLog2E, -reference));
  }
};

/// The largest logit that was seen, and the sum of the powers.
struct StreamSum {
  using Power = StreamPower;
  float top = -INFINITY;
  float reference = 0;
  float sum = 0;

  /// Measures the sum from a logit that is not smaller.
  __device__ void raise(float larger) {
    const float from = Power::reference(larger);
    sum = top == -INFINITY ? 0.0F : sum * Power::between(reference, from);
    top = larger;
    reference = from;
  }
  /// Merges the sums of `kLanes` neighboring lanes, in each of them.
  template <int kLanes>
  __device__ void gather() {
    float largest = top;
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart >>= 1) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, apart));
    }
    raise(largest);
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart >>= 1) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, apart);
    }
  }
};

/// The threads that compute. A thread has the same elements of a row when it reads it and when it
/// writes the gradient.
template <bool kTerms, class T>
class StreamWorker {
 public:
  static constexpr int N = kVector<T>;
  using Power = StreamPower;

  __device__ StreamWorker(const LossCall<T>& call, const StreamSizes& sizes, unsigned char* memory,
                          StreamShared& shared)
      : call_(call), sizes_(sizes), memory_(memory), shared_(shared) {}

  __device__ void run() {
    int turn = 0;
    for (StreamSlot at; at.row < call_.rows; at.advance(sizes_.buffers)) {
      T* row = reinterpret_cast<T*>(memory_ + at.buffer * sizes_.row_bytes);
      tma::wait(&shared_.full[at.buffer][0], at.phase);
      const std::int32_t target = shared_.target[at.buffer];
      if (call_.columns.is_here(target)) {
        write_gradient(at, row, target, turn);
        turn ^= 1;
      } else {
        clear(at, row);
      }
    }
  }

 private:
  struct Seen : StreamSum {
    int piece = 0;  ///< first piece with the largest logit
  };

  /// The vector that this thread has in a step of a piece.
  [[nodiscard]] __device__ static int vector_of(int piece, int step) {
    return piece * StreamCut::kPieceVectors + step * StreamCut::kWorkers +
           static_cast<int>(threadIdx.x);
  }
  [[nodiscard]] __device__ bool is_whole(int vector) const {
    return (vector + 1) * N <= call_.columns.count;
  }
  /// A vector's logits; -infinity beyond the vocabulary.
  __device__ void load_logits(const T* row, int vector, float (&x)[N]) const {
    if (is_whole(vector)) {
      Packed<N, T> logits;
      logits.load(row + vector * N);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = logits[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int column = vector * N + i;
      x[i] = column < call_.columns.count ? to_real(row[column]) : -INFINITY;
    }
  }

  /// Adds this thread's vectors of a piece from `first` on, of which there are kCount.
  template <int kCount>
  __device__ void add(const T* row, int piece, int first, Seen& seen) const {
    float x[kCount][N];
    float largest = -INFINITY;
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      load_logits(row, vector_of(piece, first + step), x[step]);
#pragma unroll
      for (int i = 0; i < N; ++i) largest = fmaxf(largest, x[step][i]);
    }
    if (largest > seen.top) {
      seen.raise(largest);
      seen.piece = piece;
    }
    float sums[4] = {};
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i % 4] += Power::of(x[step][i], seen.reference);
    }
    seen.sum += (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  __device__ void read_piece(const T* row, int piece, Seen& seen) const {
    const auto has = [&](int step) { return vector_of(piece, step) * N < call_.columns.count; };
    if (has(StreamCut::kSteps - 1)) return add<StreamCut::kSteps>(row, piece, 0, seen);
#pragma unroll 1
    for (int step = 0; has(step); ++step) add<1>(row, piece, step, seen);
  }

  /// The merged sum of all computing threads, in each of them.
  __device__ StreamSum gather(StreamSum mine, int turn) const {
    mine.gather<32>();
    const auto warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
      shared_.top[turn][warp] = mine.top;
      shared_.sum[turn][warp] = mine.sum;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(StreamCut::kWorkers) : "memory");
    StreamSum total;
    total.top = shared_.top[turn][threadIdx.x % StreamCut::kWarps];
    total.sum = shared_.sum[turn][threadIdx.x % StreamCut::kWarps];
    total.reference = Power::reference(total.top);
    total.gather<StreamCut::kWarps>();
    return total;
  }

  /// True if the first of this thread's logits that are `top` is before the target's.
  __device__ bool precedes(const T* row, int piece, float top, std::int32_t target) const {
    for (int step = 0; step < StreamCut::kSteps; ++step) {
      const int vector = vector_of(piece, step);
      float x[N];
      load_logits(row, vector, x);
      for (int i = 0; i < N; ++i) {
        if (x[i] == top) return vector * N + i < target;
      }
    }
    return false;
  }

  __device__ void write_piece(T* row, int piece, float reference, float factor) const {
#pragma unroll
    for (int step = 0; step < StreamCut::kSteps; ++step) {
      const int vector = vector_of(piece, step);
      if (vector * 16 >= sizes_.row_bytes) continue;
      float x[N];
      load_logits(row, vector, x);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = Power::of(x[i], reference) * factor;
      if (!is_whole(vector)) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = vector * N + i < call_.columns.count ? x[i] : 0.0F;
      }
      store<N>(row + vector * N, x);
    }
  }

  __device__ void hand_over(const StreamSlot& at, int piece) const {
    tma::publish_writes();
    tma::arrive(&shared_.written[at.buffer][piece]);
  }

  __device__ void write_gradient(const StreamSlot& at, T* row, std::int32_t target, int turn) {
    Seen seen;
    for (int piece = 0; piece < sizes_.pieces; ++piece) {
      tma::wait(&shared_.full[at.buffer][piece], at.phase);
      read_piece(row, piece, seen);
    }
    const float at_target = to_real(row[target]);
    const StreamSum sum = gather(seen, turn);
    const bool has_precedent =
        at_target == sum.top && seen.top == sum.top && precedes(row, seen.piece, sum.top, target);
    if (__any_sync(0xFFFFFFFFU, has_precedent) && threadIdx.x % 32 == 0) {
      shared_.preceded[at.buffer] = at.row + 1;
    }
    const float rounding = Power::rounding(sum.top, sum.reference);
    const RowTotal total = {sum.top, sum.sum * rounding, at_target, 0};
    if (threadIdx.x == 0) shared_.total[at.buffer] = total;
    const float scale = call_.state->gradient_scale;
    const RowFactors factors = factors_of<kTerms>(call_, at.row, total, 0, scale);
    const float factor = factors.softmax * rounding;
    const int target_vector = target / N;
    for (int piece = 0; piece < sizes_.pieces; ++piece) {
      write_piece(row, piece, sum.reference, factor);
      if (target_vector / StreamCut::kPieceVectors == piece &&
          target_vector % StreamCut::kWorkers == static_cast<int>(threadIdx.x)) {
        row[target] = from_real<T>(Power::of(at_target, sum.reference) * factor - factors.target);
      }
      hand_over(at, piece);
    }
  }

  /// The gradient of a row that does not count.
  __device__ void clear(const StreamSlot& at, T* row) {
    for (int piece = 0; piece < sizes_.pieces; ++piece) {
      tma::wait(&shared_.full[at.buffer][piece], at.phase);
      for (int step = 0; step < StreamCut::kSteps; ++step) {
        const int vector = vector_of(piece, step);
        if (vector * 16 < sizes_.row_bytes) store<N>(row + vector * N, {});
      }
      hand_over(at, piece);
    }
  }

  const LossCall<T>& call_;
  const StreamSizes sizes_;
  unsigned char* memory_;
  StreamShared& shared_;
};

template <bool kTerms, class T>
__global__ void __launch_bounds__(StreamCut::kThreads, StreamCut::kBlocks)
    streamed_loss_kernel(const __grid_constant__ LossCall<T> call, StreamSizes sizes) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ StreamShared shared;
  if (threadIdx.x == 0) shared.init(sizes);
  __syncthreads();
  overlap();
  wait_for_earlier();
  if (threadIdx.x < StreamCut::kWorkers) {
    StreamWorker<kTerms, T>(call, sizes, memory, shared).run();
  } else if (threadIdx.x == StreamCut::kWorkers) {
    StreamMover<kTerms, T>(call, sizes, memory, shared).run();
  }
}

}  // namespace hyperslab::ops::cuda
