// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "../checks.hpp"
#include "attention_decode.cuh"
#include "attention_decode.hpp"
#include "decode_block.hpp"
#include "matrix_vector.hpp"
#include "row_product.cuh"

// One kernel does a block's four products, with norms, attention and activation between them. Its
// thread blocks, one on each multiprocessor, wait for each other between two products, while their
// rings fill with the weights of the next one.

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "decode_block_forward";

template <class T>
struct NormCall {
  const T* weight;
  const T* bias;
  float eps;
  bool centered;
};

/// What norm reads: residual + delta, kept in sum.
template <class T>
struct StreamCall {
  const T* residual;
  const T* delta;
  T* sum;
  Dim width;
};

template <class T>
struct BlockCall {
  StreamCall<T> attention_stream;
  NormCall<T> attention_norm;
  RowWeights<T> qkv;
  DecodeCall<T> attention;
  void* partials;  ///< Partial of every head and split
  RowWeights<T> output;
  StreamCall<T> mlp_stream;
  NormCall<T> mlp_norm;
  RowWeights<T> up;
  RowWeights<T> down;
  Activation activation;
  T* qkv_row;
  T* activated;
  T* out;
};

/// Barriers that all blocks of one kernel have arrived at, ever: a multiple of the blocks before
/// and after every kernel, as all kernels that use it have as many.
__device__ unsigned long long arrivals;

/// All readers of all blocks; what they wrote before can be read after it.
__device__ void sync_blocks() {
  sync_readers();
  if (threadIdx.x == 0) {
    __threadfence();
    const unsigned long long mine = atomicAdd(&arrivals, 1ULL);
    const unsigned long long all = mine - mine % gridDim.x + gridDim.x;
    unsigned long long now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(&arrivals) : "memory");
    } while (now < all);
    __threadfence();
  }
  sync_readers();
}

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

/// What a norm subtracts and multiplies by.
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
    load<8>(stream.residual + v * 8, x);
    if (stream.delta != nullptr) {
      float delta[8];
      load<8>(stream.delta + v * 8, delta);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = rounded<T>(x[i] + delta[i]);
    }
    store<8>(kept + v * 8, x);
    if (stream.sum != nullptr && v % gridDim.x == blockIdx.x) store<8>(stream.sum + v * 8, x);
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

/// Columns of a normalized stream.
template <class T>
struct NormedColumns {
  const T* kept;
  NormCall<T> norm;
  Statistics statistics;
  __device__ void operator()(Dim v, float (&value)[8]) const {
    float weight[8];
    float bias[8] = {};
    load<8>(kept + v * 8, value);
    load<8>(norm.weight + v * 8, weight);
    if (norm.bias != nullptr) load<8>(norm.bias + v * 8, bias);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      value[i] = rounded<T>((value[i] - statistics.mean) * statistics.rstd * weight[i] + bias[i]);
    }
  }
};

/// Columns of what attention gives, from the parts of its splits.
template <int D, class T>
struct AttendedColumns {
  const CachedCall<T>& call;
  const Partial<D>* partials;
  __device__ void operator()(Dim v, float (&value)[8]) const {
    constexpr int kMost = static_cast<int>(kMostSplits);
    const Dim head = v * 8 / D;
    const Dim column = v * 8 % D;
    const Partial<D>* parts = partials + head * call.splits;
    float weights[kMost];
    float sums[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      weights[i] = i < call.splits ? parts[i].top : -INFINITY;
      sums[i] = i < call.splits ? parts[i].sum : 0.0F;
    }
    weigh_with_sink(call, head, weights, sums);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = 0;
    for (int i = 0; i < call.splits; ++i) {
      float part[8];
      load<8>(parts[i].values + column, part);
#pragma unroll
      for (int c = 0; c < 8; ++c) value[c] += weights[i] * part[c];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = rounded<T>(value[i]);
  }
};

/// Columns of an earlier product.
template <class T>
struct StoredColumns {
  const T* x;
  __device__ void operator()(Dim v, float (&value)[8]) const { load<8>(x + v * 8, value); }
};

/// Every block takes a split of a head, gridDim.x apart. shared: for WarpSums.
template <int kLanes, class T>
__device__ void attend(const BlockCall<T>& call, std::uint8_t* shared) {
  constexpr int D = kLanes * kVector<T>;
  auto& warps = *reinterpret_cast<WarpSums<kRingWarps, D>*>(shared);
  auto* partials = static_cast<Partial<D>*>(call.partials);
  const CachedCall<T>& cached = call.attention.cached;
  for (Dim item = blockIdx.x; item < cached.heads * cached.splits; item += gridDim.x) {
    const DecodePlace place = {0, item / cached.splits, item % cached.splits, threadIdx.x};
    attend_split<kLanes, kRingReaders>(call.attention, place, warps, sync_readers, partials[item]);
    sync_readers();  // the sums have been read
  }
}

/// The readers of a block; the last warp fills the ring in the same order.
template <class Format, int kLanes, class T>
__device__ void run_readers(const BlockCall<T>& call, WeightRing<Format::kScaled>& ring,
                            std::uint8_t* shared, RowPartials& partials) {
  constexpr int D = kLanes * kVector<T>;
  using Row = typename Format::Row;
  const Dim width = call.attention_stream.width;
  auto* kept = reinterpret_cast<T*>(shared);
  std::uint8_t* own = shared + 2 * width;
  Row row(own, width);
  Statistics statistics = read_stream(call.attention_stream, call.attention_norm, kept);
  Format::keep(NormedColumns<T>{kept, call.attention_norm, statistics}, row, width);
  sync_readers();
  multiply_row<Format>(ring, call.qkv, row, partials, {call.qkv_row, call.activation, false});
  sync_blocks();
  attend<kLanes>(call, own);
  sync_blocks();
  const CachedCall<T>& cached = call.attention.cached;
  row = Row(own, cached.heads * D);
  Format::keep(AttendedColumns<D, T>{cached, static_cast<const Partial<D>*>(call.partials)}, row,
               cached.heads * D);
  sync_readers();
  multiply_row<Format>(ring, call.output, row, partials, {call.out, call.activation, false});
  sync_blocks();
  row = Row(own, width);
  statistics = read_stream(call.mlp_stream, call.mlp_norm, kept);
  Format::keep(NormedColumns<T>{kept, call.mlp_norm, statistics}, row, width);
  sync_readers();
  multiply_row<Format>(ring, call.up, row, partials,
                       {call.activated, call.activation, !call.up.source.gated});
  sync_blocks();
  const Dim ffn_width = call.up.source.gated ? call.up.source.M / 2 : call.up.source.M;
  row = Row(own, ffn_width);
  Format::keep(StoredColumns<T>{call.activated}, row, ffn_width);
  sync_readers();
  multiply_row<Format>(ring, call.down, row, partials, {call.out, call.activation, false});
}

template <class Format, int kLanes, class T>
__global__ void __launch_bounds__(kRingThreads, 1)
    decode_block_kernel(const __grid_constant__ BlockCall<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Ring = WeightRing<Format::kScaled>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ typename Ring::Barriers barriers;
  __shared__ RowPartials partials;
  overlap();
  Ring ring(shared, barriers);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x >= kRingReaders) {
    if (threadIdx.x == kRingReaders) {
      ring.fill(call.qkv.source);
      ring.fill(call.output.source);
      ring.fill(call.up.source);
      ring.fill(call.down.source);
    }
    return;
  }
  wait_for_earlier();
  run_readers<Format, kLanes>(call, ring, shared + Ring::kBytes, partials);
#endif
}

/// Bytes of shared memory beside the ring: the stream, and the longest row or attention's sums.
template <class Format>
std::size_t working_bytes(const DecodeBlock& block) {
  constexpr std::size_t kSums = sizeof(WarpSums<kRingWarps, 128>);
  const Dim longest =
      std::max({block.qkv.shape()[1], block.output.shape()[1], block.down.shape()[1]});
  return static_cast<std::size_t>(2 * block.qkv.shape()[1]) +
         std::max(kSums, Format::shared_bytes(longest));
}

constexpr std::size_t kMostStatic = 6 * 1024;  // bytes of shared memory that the compiler gives

template <class Format>
std::size_t shared_bytes(const DecodeBlock& block) {
  return WeightRing<Format::kScaled>::kBytes + working_bytes<Format>(block);
}

/// Calls body with the format of the block's weights.
template <class T, class Body>
auto with_format(const DecodeBlock& block, Body&& body) {
  if (!block.qkv.codes) return body(PlainFormat<T>());
  if (block.qkv.codes->format == WeightFormat::int8) return body(CodeFormat<Int8Codes, T>());
  return body(CodeFormat<Int4Codes, T>());
}

bool suits_weights(const BlockWeights& weights, const BlockWeights& like, DType dtype, bool gated) {
  if (weights.codes.has_value() != like.codes.has_value()) return false;
  if (weights.codes) {
    return weights.codes->format == like.codes->format && suits_row_codes(*weights.codes, gated);
  }
  const Shape shape = weights.shape();
  return weights.weight.dtype() == dtype && shape[1] % 8 == 0 && shape[1] <= kMostColumns &&
         suits_ring(shape[0], 2 * shape[1], gated) && aligned(weights.weight.raw());
}

template <class T>
RowWeights<T> weights_of(const BlockWeights& weights, bool gated) {
  if (weights.codes) return row_codes<T>(kName, *weights.codes, weights.bias, gated);
  const Shape shape = weights.shape();
  return {ring_source(kName, weights.weight.raw(), shape[0], 2 * shape[1], gated), nullptr,
          optional_data<T>(weights.bias), 0};
}

template <class T>
NormCall<T> norm_of(const BlockNorm& norm) {
  return {norm.weight.data<T>(), optional_data<T>(norm.bias), norm.eps,
          norm.kind == NormKind::layernorm};
}

template <class T>
BlockCall<T> call_of(Context& ctx, const DecodeBlock& block, const DecodeStream& stream) {
  const Dim width = block.qkv.shape()[1];
  const T* sum = stream.delta ? stream.attention_sum.data<T>() : stream.residual.data<T>();
  BlockCall<T> call = {{stream.residual.data<T>(), optional_data<T>(stream.delta),
                        optional_data<T>(stream.attention_sum), width},
                       norm_of<T>(block.attention_norm),
                       weights_of<T>(block.qkv, false),
                       decode_call<T>(ctx, kName, block.heads, block.scores, block.tables,
                                      stream.qkv, block.cache, stream.out),
                       nullptr,
                       weights_of<T>(block.output, false),
                       {sum, stream.out.data<T>(), stream.mlp_sum.data<T>(), width},
                       norm_of<T>(block.mlp_norm),
                       weights_of<T>(block.up, is_gated(block.activation)),
                       weights_of<T>(block.down, false),
                       block.activation,
                       stream.qkv.data<T>(),
                       stream.activated.data<T>(),
                       stream.out.data<T>()};
  // As many splits as there are blocks for.
  const Dim rows = block.cache.keys.shape()[1];
  call.attention.cached.splits = std::clamp<Dim>(
      std::min(multiprocessors(kName) / block.heads.heads, (rows + kLeastKeys - 1) / kLeastKeys), 1,
      kMostSplits);
  call.partials = call.attention.cached.partial;
  return call;
}

template <class Format, int kLanes, class T>
void launch(Context& ctx, const BlockCall<T>& call, std::size_t shared) {
  constexpr int D = kLanes * kVector<T>;
  // At most a part a block, or a head.
  static_assert(sizeof(Partial<D>) <= 2 * (D + 2) * sizeof(float));
  // Every block takes part in the barriers, with tiles or without.
  launch_ring(ctx, kName, decode_block_kernel<Format, kLanes, T>, shared, multiprocessors(kName),
              call);
}

}  // namespace

bool suits_decode_block(const DecodeBlock& block, const DecodeStream& stream) {
  const DType dtype = stream.residual.dtype();
  const Dim D = block.heads.head_width;
  if ((dtype != DType::bf16 && dtype != DType::f16) || (D != 64 && D != 128)) return false;
  if (block.attention_norm.kind == NormKind::none || block.mlp_norm.kind == NormKind::none ||
      !suits_attention_decode(block.heads, block.scores, block.tables, stream.qkv, block.cache)) {
    return false;
  }
  const bool gates = is_gated(block.activation);
  for (const BlockWeights* weights : {&block.qkv, &block.output, &block.up, &block.down}) {
    if (!suits_weights(*weights, block.qkv, dtype, gates && weights == &block.up)) return false;
  }
  const bool aliases = stream.attention_sum.raw() == stream.residual.raw() ||
                       stream.mlp_sum.raw() == stream.residual.raw() ||
                       (stream.delta && stream.mlp_sum.raw() == stream.attention_sum.raw());
  const std::size_t shared =
      with_format<bf16>(block, [&]<class Format>(Format) { return shared_bytes<Format>(block); });
  return !aliases && shared + kMostStatic <= kRingShared &&
         aligned(stream.residual.raw(), stream.delta.raw(), stream.attention_sum.raw(),
                 stream.mlp_sum.raw(), stream.activated.raw(), stream.out.raw(),
                 block.attention_norm.weight.raw(), block.attention_norm.bias.raw(),
                 block.mlp_norm.weight.raw(), block.mlp_norm.bias.raw());
}

void decode_block(Context& ctx, const DecodeBlock& block, const DecodeStream& stream) {
  with_element(stream.residual.dtype(), kName, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      const BlockCall<T> call = call_of<T>(ctx, block, stream);
      with_format<T>(block, [&]<class Format>(Format) {
        const std::size_t shared = shared_bytes<Format>(block);
        if (block.heads.head_width == 64) return launch<Format, 8>(ctx, call, shared);
        launch<Format, 16>(ctx, call, shared);
      });
    }
  });
}

}  // namespace hyperslab::ops::cuda
