// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "hyperslab/core/machine.hpp"
#include "hyperslab/ops/attention.hpp"

// Scratch memory of the ops that NVIDIA's libraries compute. cuDNN's needs are known only on a GPU,
// so its ops have a cap here, which a plan on `meta` reserves and a graph must keep to. The
// functions need no CUDA, so that any build can plan for GPUs.

namespace hyperslab::ops::cuda {

inline constexpr std::size_t kCudnnSlack = std::size_t{16} << 20;

/// Rows of dy weight that wait for their activation's derivative if dpre has the memory of pre:
/// 64 MiB of them, 1024 at least.
[[nodiscard]] constexpr Dim activation_block_rows(Dim rows, Dim K, DType dtype) {
  constexpr Dim kBytes = Dim{64} << 20;
  const Dim fitting = kBytes / std::max<Dim>(1, K * static_cast<Dim>(size_of(dtype)));
  return std::min(rows, std::max<Dim>(1024, fitting));
}
[[nodiscard]] constexpr std::size_t linear_activation_backward_input_workspace(Dim rows, Dim K,
                                                                               DType dtype) {
  return static_cast<std::size_t>(activation_block_rows(rows, K, dtype) * K) * size_of(dtype);
}

/// Rows of a tile of the kernels of activation_product.cuh. The backward one leaves the column sums
/// of each tile as partial sums, in f32.
inline constexpr Dim kActivationProductRows = 128;
inline constexpr Dim kActivationProductColumns = 192;
[[nodiscard]] constexpr std::size_t activation_product_partials(Dim rows, Dim K) {
  const Dim tiles = (rows + kActivationProductRows - 1) / kActivationProductRows;
  return static_cast<std::size_t>(tiles * K) * sizeof(float);
}

[[nodiscard]] constexpr std::size_t padded_to(Dim value, Dim unit) {
  return static_cast<std::size_t>((value + unit - 1) / unit * unit);
}

/// cuDNN's forward keeps next to nothing: the slack and one f32 a row.
[[nodiscard]] constexpr std::size_t attention_forward_workspace(const HeadLayout& layout, Dim B,
                                                                Dim T) {
  const auto heads = static_cast<std::size_t>(B * layout.heads);
  return kCudnnSlack + heads * padded_to(T, 128) * sizeof(float);
}

/// cuDNN's backward sums dq in f32, (B, H, T, Dh); keeps the sum of dout * out of each row, twice;
/// with grouped queries dk and dv of every query head in f32; and, if it is to be
/// deterministic, the 16-bit gradient of the probabilities, (B, H, T, T). T is rounded up to 128.
[[nodiscard]] constexpr std::size_t attention_backward_workspace(const HeadLayout& layout, Dim B,
                                                                 Dim T, bool deterministic) {
  const auto heads = static_cast<std::size_t>(B * layout.heads);
  const std::size_t rows = heads * padded_to(T, 128);
  const std::size_t head_bytes = rows * padded_to(layout.head_width, 64) * sizeof(float);
  const std::size_t copies = layout.heads == layout.kv_heads ? 1 : 3;
  return kCudnnSlack + copies * head_bytes + 2 * rows * sizeof(float) +
         (deterministic ? rows * padded_to(T, 128) * 2 : 0);
}

/// Parts into which the rows of a sink's gradient are cut.
inline constexpr int kSinkSplits = 32;
[[nodiscard]] constexpr std::size_t attention_sinks_workspace(const HeadLayout& layout) {
  return static_cast<std::size_t>(layout.heads) * kSinkSplits * sizeof(float);
}

/// Parts into which the keys of a query are cut, for `queries` of all samples and a cache of so
/// many rows: enough blocks for a GPU, of 64 keys at least.
inline constexpr Dim kCachedBlocks = Dim{4} * kReferenceMultiprocessors;
[[nodiscard]] constexpr Dim attention_decode_splits(const HeadLayout& layout, Dim queries,
                                                    Dim rows) {
  const Dim blocks = std::max<Dim>(1, queries * layout.heads);
  return std::max<Dim>(1, std::min((kCachedBlocks + blocks - 1) / blocks, rows / 64));
}
/// Query heads that share a key-value head, of one new token or of neighboring ones, that a block
/// attends for: it reads their keys once.
inline constexpr Dim kCachedPairs = 8;
/// Parts into which the keys of a block are cut, as above; `blocks`: of all samples.
[[nodiscard]] constexpr Dim attention_cached_splits(Dim blocks, Dim keys) {
  constexpr Dim kMost = 16;
  return std::clamp<Dim>(std::min(kCachedBlocks / std::max<Dim>(1, blocks), keys / 64), 1, kMost);
}
/// Bytes of every part's values, largest score and sum, in f32; enough for any number of queries,
/// because a plan knows only the most of them.
[[nodiscard]] constexpr std::size_t attention_cached_workspace(const HeadLayout& layout) {
  return static_cast<std::size_t>(kCachedBlocks * kCachedPairs * (layout.head_width + 2)) *
         sizeof(float);
}

/// The reference path needs a sample's squares: with dropout one of dropped probabilities, and one
/// of scores that are capped.
[[nodiscard]] constexpr std::size_t attention_reference_workspace(const HeadLayout& layout, Dim T,
                                                                  DType dtype, bool dropout,
                                                                  bool caps) {
  const std::size_t square = static_cast<std::size_t>(layout.heads * T * T) * size_of(dtype);
  return (dropout ? square : 0) + (caps ? square : 0);
}

}  // namespace hyperslab::ops::cuda
