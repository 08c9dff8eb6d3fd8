// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cpu/wide_operands.hpp"
#include "cuda/products/quantized_workspace.hpp"
#include "cuda/tools/library_workspace.hpp"
#include "cuda/tools/workspace.hpp"
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
#include "hyperslab/ops/experts.hpp"
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
// they are (KNOWN), or if the processor multiplies them (MULTIPLIED), else it gets copies in f32
// (WIDENED).
#define HS_OPS(X)                            \
  X(activation_forward, WIDENED)             \
  X(activation_backward, WIDENED)            \
  X(gated_forward, KNOWN)                    \
  X(gated_backward, KNOWN)                   \
  X(rope, WIDENED)                           \
  X(attention_forward, WIDENED)              \
  X(attention_backward, WIDENED)             \
  X(attention_reference_forward, WIDENED)    \
  X(attention_reference_backward, WIDENED)   \
  X(attention_cached_forward, WIDENED)       \
  X(attention_sinks_backward, WIDENED)       \
  X(attention_operands_forward, WIDENED)     \
  X(attention_operands_backward, WIDENED)    \
  X(merge_attention, WIDENED)                \
  X(argmax, WIDENED)                         \
  X(sample, WIDENED)                         \
  X(dropout, WIDENED)                        \
  X(add, WIDENED)                            \
  X(softcap, WIDENED)                        \
  X(route, WIDENED)                          \
  X(router_statistics, WIDENED)              \
  X(add_router_statistics, WIDENED)          \
  X(update_router_bias, WIDENED)             \
  X(publish_loads, WIDENED)                  \
  X(route_backward, WIDENED)                 \
  X(sort_by_expert, WIDENED)                 \
  X(count_rows, WIDENED)                     \
  X(cut_first_rows, WIDENED)                 \
  X(add_rows_beyond, WIDENED)                \
  X(order_arrivals, WIDENED)                 \
  X(gather_rows, KNOWN)                      \
  X(sum_rows, WIDENED)                       \
  X(weighted_activation_forward, WIDENED)    \
  X(weighted_activation_backward, WIDENED)   \
  X(take_columns, WIDENED)                   \
  X(put_columns, WIDENED)                    \
  X(softcap_backward, WIDENED)               \
  X(fill, KNOWN)                             \
  X(fill_normal, WIDENED)                    \
  X(cast, KNOWN)                             \
  X(root_mean_square, WIDENED)               \
  X(embedding_forward, WIDENED)              \
  X(quantized_embedding_forward, WIDENED)    \
  X(embedding_backward, WIDENED)             \
  X(position_backward, WIDENED)              \
  X(sinusoidal_table, WIDENED)               \
  X(augment_images, WIDENED)                 \
  X(patch_tokens_forward, WIDENED)           \
  X(patch_tokens_backward, WIDENED)          \
  X(sincos2d_table, WIDENED)                 \
  X(pool_rows_forward, WIDENED)              \
  X(pool_rows_backward, WIDENED)             \
  X(class_cross_entropy, WIDENED)            \
  X(drop_path, WIDENED)                      \
  X(softmax_cross_entropy, WIDENED)          \
  X(softmax_statistics, WIDENED)             \
  X(vocabulary_cross_entropy, WIDENED)       \
  X(preference_loss, WIDENED)                \
  X(matmul, MULTIPLIED)                      \
  X(matmul_columns, MULTIPLIED)              \
  X(linear_activation_forward, KNOWN)        \
  X(linear_backward_input, MULTIPLIED)       \
  X(linear_activation_backward_input, KNOWN) \
  X(linear_backward_weight, MULTIPLIED)      \
  X(add_norm_forward, WIDENED)               \
  X(norm_backward, WIDENED)                  \
  X(head_norm_forward, WIDENED)              \
  X(head_norm_backward, WIDENED)             \
  X(adamw, WIDENED)                          \
  X(sgd, WIDENED)                            \
  X(average_weights, KNOWN)                  \
  X(exchange, KNOWN)                         \
  X(muon_direction, WIDENED)                 \
  X(muon_update, WIDENED)                    \
  X(scale, WIDENED)                          \
  X(normalize_matrices, WIDENED)             \
  X(matmul_gram, WIDENED)                    \
  X(matmul_add, WIDENED)                     \
  X(add_norm_squared, KNOWN)                 \
  X(begin_step, WIDENED)                     \
  X(finalize_step, WIDENED)                  \
  X(fp8_quantize, KNOWN)                     \
  X(fp8_amax, KNOWN)                         \
  X(fp8_scales, WIDENED)                     \
  X(fp8_transpose, WIDENED)                  \
  X(fp8_matmul, KNOWN)                       \
  X(quantize, KNOWN)                         \
  X(dequantize, KNOWN)                       \
  X(fake_quantize, KNOWN)                    \
  X(int8_row_scales, KNOWN)                  \
  X(quantize_scaled, KNOWN)                  \
  X(fake_quantize_scaled, KNOWN)             \
  X(quantized_linear_forward, WIDENED)

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

// NOLINTBEGIN(bugprone-macro-parentheses): names that are declared
#define HS_BF16_WIDENED(op)
#define HS_BF16_KNOWN(op) \
  template <>             \
  inline constexpr bool kTakesBf16<op> = true;
#define HS_BF16_MULTIPLIED(op) \
  template <>                  \
  inline constexpr bool kMultipliesBf16<op> = true;
#define HS_CPU_OP(op, bf16) \
  decltype(ops::op) op;     \
  HS_BF16_##bf16(op)
HS_OPS(HS_CPU_OP)
// NOLINTEND(bugprone-macro-parentheses)
#undef HS_CPU_OP
#undef HS_BF16_MULTIPLIED
#undef HS_BF16_KNOWN
#undef HS_BF16_WIDENED

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

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name that is declared
#define HS_CUDA_OP(op, bf16) decltype(ops::op) op;
HS_OPS(HS_CUDA_OP)
LinearForward linear_forward;
#undef HS_CUDA_OP

// Twins of functions that CPUs do by other ops.
decltype(ops::experts_forward) experts_forward;
decltype(ops::experts_backward_input) experts_backward_input;
decltype(ops::experts_backward_weight) experts_backward_weight;

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

#undef HS_OPS
