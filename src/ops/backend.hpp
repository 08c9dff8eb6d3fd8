// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cpu/wide_operands.hpp"
#include "cuda/library_workspace.hpp"
#include "cuda/quantized_workspace.hpp"
#include "cuda/workspace.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"
#include "hyperslab/ops/argmax.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/average.hpp"
#include "hyperslab/ops/classes.hpp"
#include "hyperslab/ops/clock.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/deferred_reductions.hpp"
#include "hyperslab/ops/dropout.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "hyperslab/ops/head_norm.hpp"
#include "hyperslab/ops/image.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/muon.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/ops/quantized.hpp"
#include "hyperslab/ops/sample.hpp"
#include "quantized_product.hpp"

// Every op has a twin per device with the signature of the public function, which has checked
// shapes and dtypes before. X(op, what the CPU's twin does with operands in bf16): it takes them as
// they are (known), or if the processor multiplies them (multiplied), else it gets copies in f32
// (widened).
#define HYPERSLAB_OPS(X)                     \
  X(activation_forward, widened)             \
  X(activation_backward, widened)            \
  X(gated_forward, known)                    \
  X(gated_backward, known)                   \
  X(rope, widened)                           \
  X(attention_forward, widened)              \
  X(attention_backward, widened)             \
  X(attention_reference_forward, widened)    \
  X(attention_reference_backward, widened)   \
  X(attention_cached_forward, widened)       \
  X(rope_attention_paged_forward, widened)   \
  X(attention_sinks_backward, widened)       \
  X(attention_operands_forward, widened)     \
  X(attention_operands_backward, widened)    \
  X(merge_attention, widened)                \
  X(argmax, widened)                         \
  X(sample, widened)                         \
  X(dropout, widened)                        \
  X(add, widened)                            \
  X(softcap, widened)                        \
  X(take_columns, widened)                   \
  X(put_columns, widened)                    \
  X(softcap_backward, widened)               \
  X(fill, known)                             \
  X(fill_normal, widened)                    \
  X(cast, known)                             \
  X(root_mean_square, widened)               \
  X(embedding_forward, widened)              \
  X(quantized_embedding_forward, widened)    \
  X(embedding_backward, widened)             \
  X(position_backward, widened)              \
  X(sinusoidal_table, widened)               \
  X(augment_images, widened)                 \
  X(patch_tokens_forward, widened)           \
  X(patch_tokens_backward, widened)          \
  X(sincos2d_table, widened)                 \
  X(pool_rows_forward, widened)              \
  X(pool_rows_backward, widened)             \
  X(class_cross_entropy, widened)            \
  X(drop_path, widened)                      \
  X(softmax_cross_entropy, widened)          \
  X(softmax_statistics, widened)             \
  X(vocabulary_cross_entropy, widened)       \
  X(matmul, multiplied)                      \
  X(matmul_columns, multiplied)              \
  X(linear_activation_forward, known)        \
  X(linear_backward_input, multiplied)       \
  X(linear_activation_backward_input, known) \
  X(linear_backward_weight, multiplied)      \
  X(add_norm_forward, widened)               \
  X(norm_backward, widened)                  \
  X(head_norm_forward, widened)              \
  X(head_norm_backward, widened)             \
  X(adamw, widened)                          \
  X(sgd, widened)                            \
  X(average_weights, known)                  \
  X(exchange, known)                         \
  X(muon_direction, widened)                 \
  X(muon_update, widened)                    \
  X(scale, widened)                          \
  X(normalize_matrices, widened)             \
  X(matmul_gram, widened)                    \
  X(matmul_add, widened)                     \
  X(add_norm_squared, known)                 \
  X(begin_step, widened)                     \
  X(finalize_step, widened)                  \
  X(fp8_quantize, known)                     \
  X(fp8_amax, known)                         \
  X(fp8_scales, widened)                     \
  X(fp8_transpose, widened)                  \
  X(fp8_matmul, known)                       \
  X(quantize, known)                         \
  X(dequantize, known)                       \
  X(fake_quantize, known)                    \
  X(int8_row_scales, known)                  \
  X(quantize_scaled, known)                  \
  X(fake_quantize_scaled, known)             \
  X(quantized_linear_forward, widened)

namespace hyperslab::ops {

/// The twin of linear_forward and linear_forward_add.
using LinearForward = void(Context& ctx, CView x, CView weight, CView bias, Accumulate accumulate,
                           View y);

/// Calls the twin of an op on the context's device. In builds without CUDA the first one is only
/// declared: a discarded statement needs no definition. It is nullptr of an op that the CPU alone
/// has.
template <auto cuda_op, auto cpu_op, class... Operands>
void dispatch(Context& ctx, const Operands&... operands) {
  constexpr bool kHasTwin = !std::is_null_pointer_v<decltype(cuda_op)>;
  if constexpr (kHasCuda && kHasTwin) {
    if (ctx.device() == Device::cuda) {
      cuda_op(ctx, operands...);
      if (OpObserver* observer = ctx.recorder().op_observer()) observer->end();
      return;
    }
  }
  if (!kHasTwin && ctx.device() == Device::cuda) {
    throw Error(ExitCode::usage, "GPUs do not do this operation yet: set run.device to cpu");
  }
  cpu::call<cpu_op>(ctx, operands...);
  if (OpObserver* observer = ctx.recorder().op_observer()) observer->end();
}

}  // namespace hyperslab::ops

namespace hyperslab::ops::cpu {

#define HYPERSLAB_BF16_widened(op)
#define HYPERSLAB_BF16_known(op) \
  template <>                    \
  inline constexpr bool kTakesBf16<op> = true;
#define HYPERSLAB_BF16_multiplied(op) \
  template <>                         \
  inline constexpr bool kMultipliesBf16<op> = true;
#define HYPERSLAB_CPU_OP(op, bf16) \
  decltype(ops::op) op;            \
  HYPERSLAB_BF16_##bf16(op)
HYPERSLAB_OPS(HYPERSLAB_CPU_OP)
#undef HYPERSLAB_CPU_OP
#undef HYPERSLAB_BF16_multiplied
#undef HYPERSLAB_BF16_known
#undef HYPERSLAB_BF16_widened

LinearForward linear_forward;
template <>
inline constexpr bool kMultipliesBf16<linear_forward> = true;

/// Widths of a key and of a value.
struct HeadWidths {
  Dim key;
  Dim value;
};
// Bytes of scratch memory, for the plan on `meta` and for the op itself. The GPU's functions are in
// cuda/workspace.hpp and cuda/library_workspace.hpp.
[[nodiscard]] std::size_t attention_operands_forward_workspace(int threads,
                                                               const HeadWidths& widths, Dim keys,
                                                               DType dtype);
[[nodiscard]] std::size_t attention_operands_backward_workspace(int threads,
                                                                const HeadWidths& widths, Dim keys,
                                                                DType dtype);
[[nodiscard]] std::size_t attention_forward_workspace(int threads, const HeadLayout& layout,
                                                      Dim keys, DType dtype);
[[nodiscard]] std::size_t attention_backward_workspace(int threads, const HeadLayout& layout,
                                                       Dim keys, DType dtype);
[[nodiscard]] std::size_t attention_reference_workspace(int threads, Dim keys, DType dtype);
[[nodiscard]] std::size_t linear_activation_backward_input_workspace(Dim rows, Dim width,
                                                                     DType dtype);
[[nodiscard]] std::size_t norm_backward_workspace(int threads, Dim width, DType dtype);
[[nodiscard]] std::size_t head_norm_workspace(int threads, Dim head_width, DType dtype);
[[nodiscard]] std::size_t loss_workspace(int threads);
[[nodiscard]] std::size_t class_cross_entropy_workspace(Dim rows);
[[nodiscard]] std::size_t sum_of_squares_workspace(Dim count);
[[nodiscard]] std::size_t quantized_linear_forward_workspace(int threads,
                                                             const QuantizedProduct& product);

}  // namespace hyperslab::ops::cpu

namespace hyperslab::ops::cuda {

#define HYPERSLAB_CUDA_OP(op, bf16) decltype(ops::op) op;
HYPERSLAB_OPS(HYPERSLAB_CUDA_OP)
LinearForward linear_forward;
#undef HYPERSLAB_CUDA_OP

// Functions of GPUs alone.
decltype(ops::mark_clock) mark_clock;
decltype(ops::publish_clock) publish_clock;
decltype(ops::gemm_library) gemm_library;
decltype(ops::gemm_platform) gemm_platform;
decltype(ops::algorithms_of) algorithms_of;
decltype(ops::adopt_algorithms) adopt_algorithms;
decltype(ops::chosen_algorithms) chosen_algorithms;
decltype(ops::finish_sums) finish_sums;

}  // namespace hyperslab::ops::cuda

#undef HYPERSLAB_OPS
