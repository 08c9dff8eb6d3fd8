// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"
#include "decode_block.cuh"
#include "decode_block.hpp"

// One kernel does a block's four products, with norms, attention and activation between them. Its
// thread blocks, one on each multiprocessor, wait for each other between two products, while their
// rings fill with the weights of the next one.

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "decode_block_forward";

template <class Format, int kLanes, class T>
__global__ void __launch_bounds__(kRowThreads, 1)
    decode_block_kernel(const __grid_constant__ BlockCall<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Ring = WeightRing<Format::kScaled>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ typename Ring::Barriers barriers;
  __shared__ TileSums::Memory sums;
  __shared__ std::uint64_t passed;
  overlap();
  Ring ring(shared, barriers);
  TileSums tiles(sums);
  BlockBarriers between(passed);
  if (threadIdx.x == 0) {
    ring.init();
    tiles.init();
    between.init();
  }
  __syncthreads();
  if (is_finisher()) {
    wait_for_earlier();
    return run_finisher<kLanes * kVector<T>>(call, tiles, between);
  }
  if (threadIdx.x >= kRingReaders) {
    if (threadIdx.x == kRingReaders) {
#pragma unroll 1
      for (int i = 0; i < kProducts; ++i) ring.fill(call.weights[i].source);
    }
    return;
  }
  Readers<Format, kLanes, T>(call, ring, tiles, between, shared + Ring::kBytes).run();
#endif
}

constexpr std::size_t kMostStatic = 5 * 1024;  // bytes of shared memory that the compiler gives

/// Bytes of shared memory that a launch asks for: the ring, the kept values, and the longest row or
/// attention's sums.
template <class Format, class T>
std::size_t shared_bytes(const DecodeBlock& block) {
  const Dim width = block.qkv.shape()[1];
  const Dim longest = std::max({width, block.output.shape()[1], block.down.shape()[1]});
  return WeightRing<Format::kScaled>::kBytes + Kept<T>::bytes(width) +
         std::max(sizeof(WarpSums<kRingWarps, 128>), Format::shared_bytes(longest));
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
  BlockCall<T> call = {
      {{stream.residual.data<T>(), optional_data<T>(stream.delta),
        optional_data<T>(stream.attention_sum), width},
       {sum, stream.out.data<T>(), stream.mlp_sum.data<T>(), width}},
      {norm_of<T>(block.attention_norm), norm_of<T>(block.mlp_norm)},
      {weights_of<T>(block.qkv, false), weights_of<T>(block.output, false),
       weights_of<T>(block.up, is_gated(block.activation)), weights_of<T>(block.down, false)},
      {stream.qkv.data<T>(), stream.out.data<T>(), stream.activated.data<T>(),
       stream.out.data<T>()},
      {width, block.output.shape()[1], width, block.down.shape()[1]},
      decode_call<T>(ctx, kName, block.heads, block.scores, block.tables, stream.qkv, block.cache,
                     stream.out),
      nullptr,
      block.activation};
  // As many splits as there are blocks for.
  call.attention.cached.splits =
      std::clamp<Dim>(multiprocessors() / block.heads.heads, 1, kMostBlockSplits);
  call.partials = call.attention.cached.partial;
  return call;
}

template <class Format, int kLanes, class T>
void launch(Context& ctx, const BlockCall<T>& call, std::size_t shared) {
  constexpr int D = kLanes * kVector<T>;
  // At most a part a block, or a head.
  static_assert(sizeof(Partial<D>) <= 2 * (D + 2) * sizeof(float));
  // Every block takes part in the barriers, with tiles or without.
  launch_ring<kRowThreads>(ctx, kName, decode_block_kernel<Format, kLanes, T>, shared,
                           multiprocessors(), call);
}

}  // namespace

bool suits_decode_block(const DecodeBlock& block, const DecodeStream& stream) {
  const DType dtype = stream.residual.dtype();
  if (!kOverlaps || !suits_whole_block({block, stream}).empty()) return false;
  const bool gates = is_gated(block.activation);
  for (const BlockWeights* weights : {&block.qkv, &block.output, &block.up, &block.down}) {
    if (!suits_weights(*weights, block.qkv, dtype, gates && weights == &block.up)) return false;
  }
  const CView sum = stream.delta ? CView(stream.attention_sum) : stream.residual;
  const bool aliases =
      (stream.delta && (sum.raw() == stream.residual.raw() || sum.raw() == stream.delta.raw())) ||
      sum.raw() == stream.mlp_sum.raw() || stream.out.raw() == sum.raw() ||
      stream.out.raw() == stream.mlp_sum.raw();
  const std::size_t shared = with_format<bf16>(
      block, [&]<class Format>(Format) { return shared_bytes<Format, bf16>(block); });
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
        const std::size_t shared = shared_bytes<Format, T>(block);
        if (block.heads.head_width == 64) return launch<Format, 8>(ctx, call, shared);
        launch<Format, 16>(ctx, call, shared);
      });
    }
  });
}

}  // namespace hyperslab::ops::cuda
