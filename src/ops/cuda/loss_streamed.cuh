// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels_fast.cuh"
#include "kernels_words.cuh"
#include "loss_rows.cuh"
#include "tma.cuh"

// The loss with gradients of rows that come and go through shared memory. A block goes from row to
// row and has room for two or more. One thread moves them by the copy engine in pieces: while the
// others read a row and write its gradient in its place, piece after piece, the gradient before it
// leaves and the next row comes. So loads, arithmetic and stores do not wait for each other.

namespace hyperslab::ops::cuda {

/// How a block and its shared memory are cut.
struct StreamCut {
  static constexpr int kWarps = 16;  // that compute
  static constexpr int kWorkers = 32 * kWarps;
  static constexpr int kThreads = kWorkers + 32;  // the last warp moves rows
  static constexpr int kSteps = 2;                // vectors of a piece that a thread has
  static constexpr int kPieceVectors = kSteps * kWorkers;
  static constexpr int kPieceBytes = 16 * kPieceVectors;
  static constexpr int kMostPieces = 7;
  static constexpr int kMostRowBytes = kMostPieces * kPieceBytes;
  static constexpr int kMostBuffers = 8;
  /// Of a block, if one or two are on a multiprocessor.
  static constexpr int kSharedBytes[2] = {2 * kMostRowBytes, 111 * 1024};
};

/// Sizes of a launch. Rows begin at multiples of 16 bytes and end at them.
struct StreamSizes {
  int row_bytes;     ///< up to the next row
  int loaded_bytes;  ///< those of logits, with what follows them up to 16
  int pieces;
  int blocks;   ///< of a multiprocessor
  int buffers;  ///< for a row each

  StreamSizes(int row, int loaded)
      : row_bytes(row),
        loaded_bytes(loaded),
        pieces((row + StreamCut::kPieceBytes - 1) / StreamCut::kPieceBytes),
        blocks(2 * row <= StreamCut::kSharedBytes[1] ? 2 : 1),
        buffers(std::min(StreamCut::kMostBuffers, StreamCut::kSharedBytes[blocks - 1] / row)) {}
  [[nodiscard]] int shared_bytes() const { return buffers * row_bytes; }

  /// Of so many bytes of a row those in a piece.
  [[nodiscard]] __device__ static int piece_of(int bytes, int piece) {
    return min(StreamCut::kPieceBytes, bytes - piece * StreamCut::kPieceBytes);
  }
};

/// What the threads of a block tell each other.
struct StreamShared {
  std::uint64_t full[StreamCut::kMostBuffers][StreamCut::kMostPieces];     ///< of logits
  std::uint64_t written[StreamCut::kMostBuffers][StreamCut::kMostPieces];  ///< with the gradient
  Dim preceded[StreamCut::kMostBuffers];  ///< 1 + row if an equal logit is before its target's
  std::int32_t target[StreamCut::kMostBuffers];
  RowTotal total[StreamCut::kMostBuffers];
  float top[2][StreamCut::kWarps];  ///< of rows in turn
  float sum[2][StreamCut::kWarps];

  /// One thread, before a barrier of the block.
  __device__ void init(const StreamSizes& sizes) {
    for (int buffer = 0; buffer < sizes.buffers; ++buffer) {
      preceded[buffer] = 0;
      for (int piece = 0; piece < sizes.pieces; ++piece) {
        tma::init(&full[buffer][piece], 1);
        tma::init(&written[buffer][piece], StreamCut::kWarps);
      }
    }
    tma::publish_init();
  }
};

/// Which row a block is at, and where that lies.
struct StreamPlace {
  Dim row = blockIdx.x;
  int buffer = 0;
  unsigned phase = 0;

  __device__ void advance(int buffers) {
    row += gridDim.x;
    if (++buffer < buffers) return;
    buffer = 0;
    phase ^= 1U;
  }
};

/// The thread that moves rows, and says what their losses are.
template <class T>
class StreamMover {
 public:
  __device__ StreamMover(const LossCall<T>& call, const StreamSizes& sizes, unsigned char* memory,
                         StreamShared& shared)
      : call_(call), sizes_(sizes), memory_(memory), shared_(shared) {}

  __device__ void run() {
    StreamPlace ahead;
#pragma unroll 1
    for (int i = 0; i < sizes_.buffers; ++i) {
      if (ahead.row < call_.rows) {
        const std::int32_t target = call_.targets[ahead.row];
        for (int piece = 0; piece < sizes_.pieces; ++piece) load(ahead, target, piece);
      }
      ahead.advance(sizes_.buffers);
    }
    StreamPlace at;
    for (; at.row < call_.rows; at.advance(sizes_.buffers), ahead.advance(sizes_.buffers)) {
      pass_on(at, ahead);
    }
    tma::wait_for_reads<0>();
  }

 private:
  /// Asks for a piece; of a row that does not count it has nothing to bring.
  __device__ void load(const StreamPlace& to, std::int32_t target, int piece) {
    std::uint64_t* full = &shared_.full[to.buffer][piece];
    if (piece == 0) shared_.target[to.buffer] = target;
    const int bytes = StreamSizes::piece_of(sizes_.loaded_bytes, piece);
    if (bytes <= 0 || !call_.columns.is_here(target)) return tma::arrive(full);
    const auto count = static_cast<unsigned>(bytes);
    tma::arrive_for(full, count);
    tma::copy(here(to, piece), there(to, piece), count, full, policy_);
  }

  /// Stores the row's pieces as they are written, and loads those of the row that comes there.
  __device__ void pass_on(const StreamPlace& at, const StreamPlace& ahead) {
    const bool more = ahead.row < call_.rows;
    const std::int32_t target = shared_.target[at.buffer];
    const std::int32_t next_target = more ? call_.targets[ahead.row] : 0;
    for (int piece = 0; piece < sizes_.pieces; ++piece) {
      tma::wait(&shared_.written[at.buffer][piece], at.phase);
      tma::copy_out(there(at, piece), here(at, piece),
                    static_cast<unsigned>(StreamSizes::piece_of(sizes_.row_bytes, piece)));
      tma::commit_copies_out();
      if (piece == 0) continue;
      tma::wait_for_reads<1>();
      if (more) load(ahead, next_target, piece - 1);
    }
    RowTotal total = shared_.total[at.buffer];
    const bool preceded = shared_.preceded[at.buffer] == at.row + 1;
    total.answer = preceded ? -1.0F : static_cast<float>(target);
    tma::wait_for_reads<0>();
    if (more) load(ahead, next_target, sizes_.pieces - 1);
    if (call_.columns.is_here(target)) {
      write_loss(call_, at.row, target, total);
    } else {
      write_no_loss(call_, at.row, target);
    }
  }

  [[nodiscard]] __device__ unsigned char* here(const StreamPlace& place, int piece) const {
    return memory_ + place.buffer * sizes_.row_bytes + piece * StreamCut::kPieceBytes;
  }
  [[nodiscard]] __device__ unsigned char* there(const StreamPlace& place, int piece) const {
    return reinterpret_cast<unsigned char*>(call_.logits + place.row * call_.columns.stride) +
           piece * StreamCut::kPieceBytes;
  }

  const LossCall<T>& call_;
  const StreamSizes sizes_;
  unsigned char* memory_;
  StreamShared& shared_;
  const std::uint64_t policy_ = tma::read_once();
};

/// e^(x - largest): for 16 bits as a power of 2, from a reference that is the largest logit times
/// log2 e, rounded.
template <class T>
struct StreamPower {
  static constexpr bool kFast = sizeof(T) == 2;
  [[nodiscard]] __device__ static float reference(float top) {
    if (top == -INFINITY) return 0;
    return kFast ? top * kLog2E : top;
  }
  [[nodiscard]] __device__ static float of(float x, float reference) {
    if constexpr (kFast) return power_of_2(fmaf(x, kLog2E, -reference));
    return expf(x - reference);
  }
  [[nodiscard]] __device__ static float between(float reference, float larger) {
    return kFast ? power_of_2(reference - larger) : expf(reference - larger);
  }
  /// Of the reference as it was rounded, measured from the largest logit itself.
  [[nodiscard]] __device__ static float rounding(float top, float reference) {
    return kFast ? power_of_2(-fmaf(top, kLog2E, -reference)) : 1.0F;
  }
};

/// The largest logit that was seen, and the sum of the powers.
template <class T>
struct StreamSum {
  using Power = StreamPower<T>;
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
  /// Of lanes that are `kLanes` neighbors.
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
template <class T>
class StreamWorker {
 public:
  static constexpr int N = kVector<T>;
  using Power = StreamPower<T>;

  __device__ StreamWorker(const LossCall<T>& call, const StreamSizes& sizes, unsigned char* memory,
                          StreamShared& shared)
      : call_(call), sizes_(sizes), memory_(memory), shared_(shared) {}

  __device__ void run() {
    int turn = 0;
    for (StreamPlace at; at.row < call_.rows; at.advance(sizes_.buffers)) {
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
  struct Seen : StreamSum<T> {
    int piece = 0;  ///< where the largest is first
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

  /// What all threads have seen, in each.
  __device__ StreamSum<T> gather(StreamSum<T> mine, int turn) const {
    mine.template gather<32>();
    const auto warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
      shared_.top[turn][warp] = mine.top;
      shared_.sum[turn][warp] = mine.sum;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(StreamCut::kWorkers) : "memory");
    StreamSum<T> total;
    total.top = shared_.top[turn][threadIdx.x % StreamCut::kWarps];
    total.sum = shared_.sum[turn][threadIdx.x % StreamCut::kWarps];
    total.reference = Power::reference(total.top);
    total.template gather<StreamCut::kWarps>();
    return total;
  }

  /// Whether the first of this thread's logits that are `top` is before the target's.
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

  __device__ void hand_over(const StreamPlace& at, int piece) const {
    tma::publish_writes();
    __syncwarp();
    if (threadIdx.x % 32 == 0) tma::arrive(&shared_.written[at.buffer][piece]);
  }

  __device__ void write_gradient(const StreamPlace& at, T* row, std::int32_t target, int turn) {
    Seen seen;
    for (int piece = 0; piece < sizes_.pieces; ++piece) {
      tma::wait(&shared_.full[at.buffer][piece], at.phase);
      read_piece(row, piece, seen);
    }
    const float at_target = to_real(row[target]);
    const StreamSum<T> sum = gather(seen, turn);
    if (at_target == sum.top && seen.top == sum.top && precedes(row, seen.piece, sum.top, target)) {
      shared_.preceded[at.buffer] = at.row + 1;
    }
    const float rounding = Power::rounding(sum.top, sum.reference);
    const RowTotal total = {sum.top, sum.sum * rounding, at_target, 0};
    if (threadIdx.x == 0) shared_.total[at.buffer] = total;
    const float scale = call_.state->gradient_scale;
    const float factor = softmax_factor(call_, total, scale) * rounding;
    const int target_vector = target / N;
    for (int piece = 0; piece < sizes_.pieces; ++piece) {
      write_piece(row, piece, sum.reference, factor);
      if (target_vector / StreamCut::kPieceVectors == piece &&
          target_vector % StreamCut::kWorkers == static_cast<int>(threadIdx.x)) {
        row[target] = from_real<T>(Power::of(at_target, sum.reference) * factor - scale);
      }
      hand_over(at, piece);
    }
  }

  /// The gradient of a row that does not count.
  __device__ void clear(const StreamPlace& at, T* row) {
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

template <class T>
__global__ void __launch_bounds__(StreamCut::kThreads, 2)
    streamed_loss_kernel(const __grid_constant__ LossCall<T> call, StreamSizes sizes) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ StreamShared shared;
  if (threadIdx.x == 0) shared.init(sizes);
  __syncthreads();
  if (threadIdx.x < StreamCut::kWorkers) {
    StreamWorker<T>(call, sizes, memory, shared).run();
  } else if (threadIdx.x == StreamCut::kWorkers) {
    StreamMover<T>(call, sizes, memory, shared).run();
  }
}

}  // namespace hyperslab::ops::cuda
