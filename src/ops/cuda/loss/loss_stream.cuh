// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/tools/tma.cuh"
#include "loss_rows.cuh"

// The loss with gradients of rows that come and go through shared memory. A block goes from row to
// row and has room for some. One thread moves them by the copy engine in pieces: while the
// others read a row and write its gradient in its place, piece after piece, the gradient before it
// leaves and the next row comes. So loads, arithmetic and stores do not wait for each other.

namespace hyperslab::ops::cuda {

/// The split of a block and its shared memory.
struct StreamCut {
  static constexpr int kWarps = 16;  // warps that compute
  static constexpr int kWorkers = 32 * kWarps;
  static constexpr int kThreads = kWorkers + 32;  // the last warp moves rows
  static constexpr int kSteps = 2;                // vectors of a piece that a thread has
  static constexpr int kPieceVectors = kSteps * kWorkers;
  static constexpr int kPieceBytes = 16 * kPieceVectors;
  static constexpr int kMostBuffers = 8;
  static constexpr int kBlocks = 2;  // blocks on a multiprocessor
  static constexpr int kSharedBytes = 111 * 1024;
  static constexpr int kMostPieces = (kSharedBytes + kPieceBytes - 1) / kPieceBytes;
};

/// Sizes of a launch. Rows begin at multiples of 16 bytes and end at them.
struct StreamSizes {
  int row_bytes;     ///< up to the next row
  int loaded_bytes;  ///< bytes of the logits, with those after them up to 16
  int pieces;
  int buffers;  ///< slots for a row each

  StreamSizes(int row, int loaded)
      : row_bytes(row),
        loaded_bytes(loaded),
        pieces((row + StreamCut::kPieceBytes - 1) / StreamCut::kPieceBytes),
        buffers(std::min(StreamCut::kMostBuffers, StreamCut::kSharedBytes / row)) {}
  [[nodiscard]] int shared_bytes() const { return buffers * row_bytes; }

  /// Bytes in `piece` of a row of `bytes`.
  [[nodiscard]] __device__ static int piece_of(int bytes, int piece) {
    return min(StreamCut::kPieceBytes, bytes - piece * StreamCut::kPieceBytes);
  }
};

/// Values that the threads of a block exchange.
struct StreamShared {
  std::uint64_t full[StreamCut::kMostBuffers][StreamCut::kMostPieces];     ///< logits are there
  std::uint64_t written[StreamCut::kMostBuffers][StreamCut::kMostPieces];  ///< gradient is there
  Dim preceded[StreamCut::kMostBuffers];  ///< 1 + row if an equal logit is before its target's
  std::int32_t target[StreamCut::kMostBuffers];
  RowTotal total[StreamCut::kMostBuffers];
  float top[2][StreamCut::kWarps];  ///< largest logits; rows take turns
  float sum[2][StreamCut::kWarps];

  /// One thread, before a barrier of the block.
  __device__ void init(const StreamSizes& sizes) {
    for (int buffer = 0; buffer < sizes.buffers; ++buffer) {
      preceded[buffer] = 0;
      for (int piece = 0; piece < sizes.pieces; ++piece) {
        tma::init(&full[buffer][piece], 1);
        tma::init(&written[buffer][piece], StreamCut::kWorkers);
      }
    }
    tma::publish_init();
  }
};

/// Which row a block is at, and where that lies.
struct StreamSlot {
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

/// The thread that moves rows, and gives their losses.
template <bool kTerms, class T>
class StreamMover {
 public:
  __device__ StreamMover(const LossCall<T>& call, const StreamSizes& sizes, unsigned char* memory,
                         StreamShared& shared)
      : call_(call), sizes_(sizes), memory_(memory), shared_(shared) {}

  __device__ void run() {
    StreamSlot ahead;
#pragma unroll 1
    for (int i = 0; i < sizes_.buffers; ++i) {
      if (ahead.row < call_.rows) {
        const std::int32_t target = call_.targets[ahead.row];
        for (int piece = 0; piece < sizes_.pieces; ++piece) load(ahead, target, piece);
      }
      ahead.advance(sizes_.buffers);
    }
    StreamSlot at;
    for (; at.row < call_.rows; at.advance(sizes_.buffers), ahead.advance(sizes_.buffers)) {
      pass_on(at, ahead);
    }
    tma::wait_for_reads<0>();
  }

 private:
  /// Asks for a piece; of a row that does not count it has nothing to bring.
  __device__ void load(const StreamSlot& to, std::int32_t target, int piece) {
    std::uint64_t* full = &shared_.full[to.buffer][piece];
    if (piece == 0) shared_.target[to.buffer] = target;
    const int bytes = StreamSizes::piece_of(sizes_.loaded_bytes, piece);
    if (bytes <= 0 || !call_.columns.is_here(target)) return tma::arrive(full);
    const auto count = static_cast<unsigned>(bytes);
    tma::arrive_for(full, count);
    tma::copy(here(to, piece), there(to, piece), count, full, policy_);
  }

  /// Stores the row's pieces as they are written, and loads the pieces of the row that comes there.
  __device__ void pass_on(const StreamSlot& at, const StreamSlot& ahead) {
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
      write_loss<kTerms>(call_, at.row, target, total, 0);
    } else {
      write_no_loss<kTerms>(call_, at.row, target);
    }
  }

  [[nodiscard]] __device__ unsigned char* here(const StreamSlot& slot, int piece) const {
    return memory_ + slot.buffer * sizes_.row_bytes + piece * StreamCut::kPieceBytes;
  }
  [[nodiscard]] __device__ unsigned char* there(const StreamSlot& slot, int piece) const {
    return reinterpret_cast<unsigned char*>(call_.logits + slot.row * call_.columns.stride) +
           piece * StreamCut::kPieceBytes;
  }

  const LossCall<T>& call_;
  const StreamSizes sizes_;
  unsigned char* memory_;
  StreamShared& shared_;
  const std::uint64_t policy_ = tma::read_once();
};

}  // namespace hyperslab::ops::cuda
