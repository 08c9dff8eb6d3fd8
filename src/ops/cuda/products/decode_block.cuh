// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/attention/decode.cuh"
#include "row_product.cuh"

// Parts of decode_block_kernel. Only the file with this kernel includes them: the counter of
// barriers is one of each translation unit.

namespace hyperslab::ops::cuda {
namespace {

/// Thread blocks that share the keys of a head at most. Every one reads the sums of all.
constexpr Dim kMostBlockSplits = 4;

template <class T>
struct NormCall {
  const T* weight;
  const T* bias;
  float eps;
  bool centered;
};

/// The input of norm: residual + delta, kept in sum.
template <class T>
struct StreamCall {
  const T* residual;
  const T* delta;
  T* sum;
  Dim width;
};

/// The products of a block, in their order.
enum Product : int { kQkv, kOutput, kUp, kDown, kProducts };

/// The first of two norms comes before qkv, the second before up.
template <class T>
struct BlockCall {
  StreamCall<T> streams[2];
  NormCall<T> norms[2];
  RowWeights<T> weights[kProducts];
  T* results[kProducts];  ///< packed qkv; attention's output; the activated row; out
  Dim columns[kProducts];
  DecodeCall<T> attention;
  void* partials;  ///< Partial of every head and split
  Activation activation;
};

/// Barriers of a kernel: after qkv, attention, output and up.
constexpr unsigned kBarriers = 4;
/// Arrivals of blocks at barriers, ever: a multiple of kBarriers times the blocks before and after
/// every kernel, as all kernels that use it have as many blocks, one on each multiprocessor, and
/// run one after the other.
__device__ unsigned long long arrivals;

/// Barriers of all blocks of a kernel. The finishing warp waits for the other blocks, and then lets
/// the readers go on.
class BlockBarriers {
 public:
  __device__ explicit BlockBarriers(std::uint64_t& passed) : passed_(passed) {}

  /// One thread, before all others pass a barrier of the block.
  __device__ void init() { tma::init(&passed_, 1); }

  /// One thread of a block, after all writes of the block that others read after the barrier.
  __device__ static void arrive() {
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(&arrivals) : "memory");
  }

  /// The thread that calls let_pass(), before its readers pass a barrier: so at most one is over.
  __device__ void start() {
    const unsigned long long now = load();
    target_ = now - now % (kBarriers * gridDim.x);
  }
  /// That thread: lets the readers pass once all blocks have arrived at the next barrier.
  __device__ void let_pass() {
    target_ += gridDim.x;
    while (load() < target_) {
    }
    tma::arrive(&passed_);
  }
  /// Every reader.
  __device__ void pass() {
    tma::wait(&passed_, phase_);
    phase_ ^= 1U;
  }

 private:
  __device__ static unsigned long long load() {
    unsigned long long now;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(&arrivals) : "memory");
    return now;
  }
  std::uint64_t& passed_;
  unsigned long long target_ = 0;
  unsigned phase_ = 0;
};

/// The sum over all readers, the same bits in each. scratch: free for reuse after a barrier.
__device__ float readers_sum(float value, float (&scratch)[kRingWarps]) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  sync_readers();
  float total = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kRingWarps; ++warp) total += scratch[warp];
  return total;
}

/// The shared memory of a block beside the ring and the row of a product: the stream, and the
/// parameters of both norms, which are read before earlier kernels have ended.
template <class T>
struct Kept {
  T* stream;
  Dim width;

  __device__ Kept(std::uint8_t* shared, Dim columns)
      : stream(reinterpret_cast<T*>(shared)), width(columns) {}
  [[nodiscard]] __host__ static std::size_t bytes(Dim columns) {
    return static_cast<std::size_t>(5 * columns) * sizeof(T);
  }
  [[nodiscard]] __device__ T* weight(int norm) const { return stream + (1 + norm) * width; }
  [[nodiscard]] __device__ T* bias(int norm) const { return stream + (3 + norm) * width; }
  /// The row of the product that is next, in the form that its weights take.
  [[nodiscard]] __device__ std::uint8_t* row() const {
    return reinterpret_cast<std::uint8_t*>(stream + 5 * width);
  }
  __device__ void load_norm(int i, const NormCall<T>& norm) const {
    for (Dim v = threadIdx.x; v < width / 8; v += kRingReaders) {
      using Vector = Vec<T, 8>;
      const Dim at = v * 8;
      *reinterpret_cast<Vector*>(weight(i) + at) = load_raw<8>(norm.weight + at);
      *reinterpret_cast<Vector*>(bias(i) + at) =
          norm.bias == nullptr ? Vector{} : load_raw<8>(norm.bias + at);
    }
  }
};

/// The mean that a norm subtracts and the factor by which it multiplies.
struct Statistics {
  float mean;
  float rstd;
};

/// The stream as it is stored, in shared memory, each reader's own vectors; every block writes a
/// part of the sum to memory.
template <class T>
__device__ Statistics read_stream(const StreamCall<T>& stream, const NormCall<T>& norm, T* kept) {
  __shared__ float scratch[2][kRingWarps];
  const Dim vectors = stream.width / 8;
  const auto width = static_cast<float>(stream.width);
  float total = 0;
  for (Dim v = threadIdx.x; v < vectors; v += kRingReaders) {
    float x[8];
    float delta[8] = {};
    load<8>(stream.residual + v * 8, x);
    if (stream.delta != nullptr) load<8>(stream.delta + v * 8, delta);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = rounded<T>(x[i] + delta[i]);
    store<8>(kept + v * 8, x);
    if (stream.sum != nullptr && static_cast<unsigned>(v) % gridDim.x == blockIdx.x) {
      store<8>(stream.sum + v * 8, x);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) total += norm.centered ? x[i] : x[i] * x[i];
  }
  total = readers_sum(total, scratch[0]);
  if (!norm.centered) return {0.0F, 1.0F / sqrtf(total / width + norm.eps)};
  const float mean = total / width;
  float squares = 0;
  for (Dim v = threadIdx.x; v < vectors; v += kRingReaders) {
    float x[8];
    load<8>(kept + v * 8, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += (x[i] - mean) * (x[i] - mean);
  }
  squares = readers_sum(squares, scratch[1]);
  return {mean, 1.0F / sqrtf(squares / width + norm.eps)};
}

/// Columns of a normalized stream, from shared memory.
template <class T>
struct NormedColumns {
  static constexpr int kAtOnce = 1;
  const T* stream;
  const T* weight;
  const T* bias;
  Statistics statistics;
  __device__ void operator()(Dim v, float (&value)[8]) const {
    float factor[8];
    float shift[8];
    load<8>(stream + v * 8, value);
    load<8>(weight + v * 8, factor);
    load<8>(bias + v * 8, shift);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      value[i] = rounded<T>((value[i] - statistics.mean) * statistics.rstd * factor[i] + shift[i]);
    }
  }
};

/// Columns of attention's output, from the parts of its splits.
template <int D, class T>
struct AttendedColumns {
  static constexpr int kAtOnce = 1;
  const CachedCall<T>& call;
  const Partial<D>* partials;
  int used;  ///< splits that have keys
  __device__ void operator()(Dim v, float (&value)[8]) const {
    constexpr int kMost = static_cast<int>(kMostBlockSplits);
    const int head = static_cast<int>(v) / (D / 8);
    const int column = static_cast<int>(v) % (D / 8) * 8;
    const Partial<D>* parts = partials + head * call.splits;
    float weights[kMost];
    float sums[kMost];
    float part[kMost][8] = {};
    // All loads are in progress at once.
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      weights[i] = i < used ? parts[i].top : -INFINITY;
      sums[i] = i < used ? parts[i].sum : 0.0F;
      if (i < used) load<8>(parts[i].values + column, part[i]);
    }
    weigh_with_sink(call, head, weights, sums);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < kMost; ++i) total += weights[i] * part[i][c];
      value[c] = rounded<T>(total);
    }
  }
};

/// Items that blocks take, gridDim.x apart: a split of a head each.
template <class T>
__device__ int attention_items(const CachedCall<T>& call) {
  return static_cast<int>(call.heads * call.splits);
}
template <class T>
__device__ DecodePlace place_of(const CachedCall<T>& call, int item, int past) {
  const auto splits = static_cast<int>(call.splits);
  return {0, item / splits, item % splits, past, threadIdx.x};
}

/// A split has as many keys as the readers of a block take at once, or more.
template <int D, class T>
__device__ KeySplits block_splits(const CachedCall<T>& call, int past) {
  return splits_of(call, past, kRingReaders * kVector<T> / D * kKeysAtOnce);
}

/// A warp: brings the keys and values that its block will attend to into the L2 cache.
template <int D, class T>
__device__ void fetch_cache(const CachedCall<T>& call, int past) {
  constexpr int kLine = 128 / sizeof(T);
  constexpr int kLines = D / kLine;
  const Dim row = call.kv_heads * D;
  const KeySplits splits = block_splits<D>(call, past);
  for (int item = static_cast<int>(blockIdx.x); item < attention_items(call);
       item += static_cast<int>(gridDim.x)) {
    const DecodePlace place = place_of(call, item, past);
    const auto [begin, end] = keys_of(splits, place);
    const Dim at = head_in_cache(call, place);
    for (int i = begin * kLines + static_cast<int>(threadIdx.x) % 32; i < min(past, end) * kLines;
         i += 32) {
      const Dim offset = at + i / kLines * row + i % kLines * kLine;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(call.keys + offset));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(call.values + offset));
    }
  }
}

/// Every block takes a split of a head, gridDim.x apart. shared: for WarpSums.
template <int kLanes, class T>
__device__ void attend(const BlockCall<T>& call, int past, std::uint8_t* shared) {
  constexpr int D = kLanes * kVector<T>;
  auto& warps = *reinterpret_cast<WarpSums<kRingWarps, D>*>(shared);
  auto* partials = static_cast<Partial<D>*>(call.partials);
  const CachedCall<T>& cached = call.attention.cached;
  const KeySplits splits = block_splits<D>(cached, past);
  for (int item = static_cast<int>(blockIdx.x); item < attention_items(cached);
       item += static_cast<int>(gridDim.x)) {
    const DecodePlace place = place_of(cached, item, past);
    attend_split<kLanes, kRingReaders>(call.attention, place, keys_of(splits, place), warps,
                                       sync_readers, partials[item]);
    sync_readers();  // the sums have been read
  }
}

/// True if a block has tiles of a product. Their finisher arrives at the barrier after it, in other
/// blocks a reader does.
__device__ bool has_tiles(const RingSource& source) {
  return static_cast<int>(blockIdx.x) < source.tiles();
}

/// The readers of a block. Code that runs once waits for its instructions, so there is little of
/// it; but loops over stages read parameters of a product that is known.
template <class Format, int kLanes, class T>
class Readers {
 public:
  __device__ Readers(const BlockCall<T>& call, WeightRing<Format::kScaled>& ring, TileSums& tiles,
                     BlockBarriers& barriers, std::uint8_t* shared)
      : call_(call),
        ring_(ring),
        tiles_(tiles),
        barriers_(barriers),
        kept_(shared, call.streams[0].width) {}

  __device__ void run() {
    for (int i = 0; i < 2; ++i) kept_.load_norm(i, call_.norms[i]);
    wait_for_earlier();
    const auto past = static_cast<int>(call_.attention.cached.past.get());
#pragma unroll
    for (int product = kQkv; product < kProducts; ++product) {
      const RowWeights<T>& weights = call_.weights[product];
      const typename Format::Row row(kept_.row(), call_.columns[product]);
      keep_row(product, past, row);
      sync_readers();
      multiply_row<Format>(ring_, weights, row, tiles_);
      if (product == kDown) break;
      if (!has_tiles(weights.source)) arrive();
      barriers_.pass();
      if (product != kQkv) continue;
      attend<kLanes>(call_, past, kept_.row());
      arrive();
      barriers_.pass();
    }
  }

 private:
  static constexpr int D = kLanes * kVector<T>;

  /// Keeps the row that a product multiplies.
  __device__ void keep_row(int product, int past, const typename Format::Row& row) {
    const Dim K = call_.columns[product];
    if (product == kOutput) {
      const CachedCall<T>& cached = call_.attention.cached;
      const int used = block_splits<D>(cached, past).used();
      const auto* partials = static_cast<const Partial<D>*>(call_.partials);
      Format::keep(AttendedColumns<D, T>{cached, partials, used}, row, K);
    } else if (product == kDown) {
      Format::keep(StoredColumns<T>{call_.results[kUp]}, row, K);
    } else {
      const int i = product == kUp ? 1 : 0;
      const Statistics statistics = read_stream(call_.streams[i], call_.norms[i], kept_.stream);
      Format::keep(NormedColumns<T>{kept_.stream, kept_.weight(i), kept_.bias(i), statistics}, row,
                   K);
    }
  }
  /// Makes values that the readers of this block have written readable after the next barrier.
  __device__ void arrive() {
    sync_readers();
    if (threadIdx.x == 0) BlockBarriers::arrive();
  }

  const BlockCall<T>& call_;
  WeightRing<Format::kScaled>& ring_;
  TileSums& tiles_;
  BlockBarriers& barriers_;
  Kept<T> kept_;
};

/// The warp that finishes tiles: all products, and the barriers.
template <int D, class T>
__device__ void run_finisher(const BlockCall<T>& call, TileSums& tiles, BlockBarriers& barriers) {
  const bool is_first = threadIdx.x % 32 == 0;
  if (is_first) barriers.start();
  fetch_cache<D>(call.attention.cached, static_cast<int>(call.attention.cached.past.get()));
#pragma unroll 1
  for (int product = kQkv; product < kProducts; ++product) {
    const RowWeights<T>& weights = call.weights[product];
    const bool activates = product == kUp && !weights.source.gated;
    finish_row(weights, tiles, {call.results[product], call.activation, activates});
    __syncwarp();
    if (product == kDown) break;
    if (is_first) {
      if (has_tiles(weights.source)) BlockBarriers::arrive();
      barriers.let_pass();
      if (product == kQkv) barriers.let_pass();  // after attention
    }
    __syncwarp();
  }
}

}  // namespace
}  // namespace hyperslab::ops::cuda
