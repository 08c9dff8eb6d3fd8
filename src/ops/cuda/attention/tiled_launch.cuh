// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tiles.cuh"

namespace hyperslab::ops::cuda {

template <int kWidth>
struct Width {};

/// Calls body(Width<W>(), T()) with the narrowest tiles that hold a head.
template <class Body>
void with_tiles(DType dtype, const HeadLayout& layout, const char* op, Body&& body) {
  require(layout.head_width % 8 == 0 && layout.head_width <= 256,
          "tiled attention: expected heads of a multiple of 8 elements, 256 at most");
  with_element(dtype, op, [&]<class T>(T element) {
    if constexpr (sizeof(T) == 2) {
      if (layout.head_width <= 64) return body(Width<64>(), element);
      if (layout.head_width <= 128) return body(Width<128>(), element);
      body(Width<256>(), element);
    } else {
      throw Error(ExitCode::internal, std::string(op) + ": tiles are of bf16 or f16");
    }
  });
}

template <class T>
TiledCall<T> tiled_call(const HeadLayout& layout, const AttentionScores& scores, CView qkv) {
  TiledCall<T> call = {};
  call.tokens = static_cast<int>(qkv.shape()[1]);
  call.heads = static_cast<int>(layout.heads);
  call.kv_heads = static_cast<int>(layout.kv_heads);
  call.head_width = static_cast<int>(layout.head_width);
  call.window = static_cast<int>(std::min<Dim>(scores.mask.window, call.tokens));
  call.first_keys = optional_data<std::int32_t>(scores.first_keys);
  call.scale = static_cast<float>(scores.scale_of(layout));
  call.softcap = static_cast<float>(scores.softcap);
  call.qkv = qkv.data<T>();
  return call;
}

template <class T>
dim3 tile_grid(const TiledCall<T>& call, int heads, Dim samples) {
  return {static_cast<unsigned>(ceil_divide(call.tokens, kTileRows)), static_cast<unsigned>(heads),
          static_cast<unsigned>(samples)};
}

/// More than 48 KiB of shared memory is to be asked for, once, and room for several blocks.
template <int kBytes, auto kernel>
void ask_for_shared(const char* op) {
  [[maybe_unused]] static const bool asked = [op] {
    const auto set = [op](cudaFuncAttribute what, int value) {
      check_cuda(cudaFuncSetAttribute(kernel, what, value), op, "cudaFuncSetAttribute");
    };
    set(cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    return true;
  }();
}

template <int kBytes, auto kernel, class Call>
void launch_tiles(Context& ctx, const char* op, dim3 blocks, const Call& call) {
  ask_for_shared<kBytes, kernel>(op);
  kernel<<<blocks, kTileThreads, kBytes, ctx.stream().cuda()>>>(call);
  check_launch(op);
}
/// Likewise as launch_waiting.
template <int kBytes, auto kernel, class Call>
void launch_waiting_tiles(Context& ctx, const char* op, Dim rows, dim3 blocks, const Call& call) {
  ask_for_shared<kBytes, kernel>(op);
  launch_waiting(ctx, op, rows, kernel, {blocks, kTileThreads, kBytes}, call);
}

}  // namespace hyperslab::ops::cuda
