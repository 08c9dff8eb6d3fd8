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
// shapes and dtypes before.

namespace hyperslab::ops {

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

decltype(ops::activation_forward) activation_forward;
decltype(ops::activation_backward) activation_backward;
decltype(ops::gated_forward) gated_forward;
decltype(ops::gated_backward) gated_backward;
decltype(ops::rope) rope;
decltype(ops::attention_forward) attention_forward;
decltype(ops::attention_backward) attention_backward;
decltype(ops::attention_reference_forward) attention_reference_forward;
decltype(ops::attention_reference_backward) attention_reference_backward;
decltype(ops::attention_cached_forward) attention_cached_forward;
decltype(ops::rope_attention_paged_forward) rope_attention_paged_forward;
decltype(ops::attention_sinks_backward) attention_sinks_backward;
decltype(ops::attention_operands_forward) attention_operands_forward;
decltype(ops::attention_operands_backward) attention_operands_backward;
decltype(ops::merge_attention) merge_attention;
decltype(ops::argmax) argmax;
decltype(ops::sample) sample;
decltype(ops::dropout) dropout;
decltype(ops::add) add;
decltype(ops::softcap) softcap;
decltype(ops::take_columns) take_columns;
decltype(ops::put_columns) put_columns;
decltype(ops::softcap_backward) softcap_backward;
decltype(ops::fill) fill;
decltype(ops::fill_normal) fill_normal;
decltype(ops::cast) cast;
decltype(ops::root_mean_square) root_mean_square;
decltype(ops::embedding_forward) embedding_forward;
decltype(ops::quantized_embedding_forward) quantized_embedding_forward;
decltype(ops::embedding_backward) embedding_backward;
decltype(ops::position_backward) position_backward;
decltype(ops::sinusoidal_table) sinusoidal_table;
decltype(ops::augment_images) augment_images;
decltype(ops::patch_tokens_forward) patch_tokens_forward;
decltype(ops::patch_tokens_backward) patch_tokens_backward;
decltype(ops::sincos2d_table) sincos2d_table;
decltype(ops::pool_rows_forward) pool_rows_forward;
decltype(ops::pool_rows_backward) pool_rows_backward;
decltype(ops::class_cross_entropy) class_cross_entropy;
decltype(ops::drop_path) drop_path;
decltype(ops::softmax_cross_entropy) softmax_cross_entropy;
decltype(ops::softmax_statistics) softmax_statistics;
decltype(ops::vocabulary_cross_entropy) vocabulary_cross_entropy;
decltype(ops::matmul) matmul;
decltype(ops::matmul_columns) matmul_columns;
void linear_forward(Context& ctx, CView x, CView weight, CView bias, Accumulate accumulate, View y);
decltype(ops::linear_activation_forward) linear_activation_forward;
decltype(ops::linear_backward_input) linear_backward_input;
decltype(ops::linear_activation_backward_input) linear_activation_backward_input;
decltype(ops::linear_backward_weight) linear_backward_weight;
decltype(ops::add_norm_forward) add_norm_forward;
decltype(ops::norm_backward) norm_backward;
decltype(ops::head_norm_forward) head_norm_forward;
decltype(ops::head_norm_backward) head_norm_backward;
decltype(ops::adamw) adamw;
decltype(ops::sgd) sgd;
decltype(ops::average_weights) average_weights;
decltype(ops::exchange) exchange;
decltype(ops::muon_direction) muon_direction;
decltype(ops::muon_update) muon_update;
decltype(ops::scale) scale;
decltype(ops::normalize_matrices) normalize_matrices;
decltype(ops::matmul_gram) matmul_gram;
decltype(ops::matmul_add) matmul_add;
decltype(ops::add_norm_squared) add_norm_squared;
decltype(ops::begin_step) begin_step;
decltype(ops::finalize_step) finalize_step;
decltype(ops::fp8_quantize) fp8_quantize;
decltype(ops::fp8_amax) fp8_amax;
decltype(ops::fp8_scales) fp8_scales;
decltype(ops::fp8_transpose) fp8_transpose;
decltype(ops::fp8_matmul) fp8_matmul;
decltype(ops::quantize) quantize;
decltype(ops::dequantize) dequantize;
decltype(ops::fake_quantize) fake_quantize;
decltype(ops::int8_row_scales) int8_row_scales;
decltype(ops::quantize_scaled) quantize_scaled;
decltype(ops::fake_quantize_scaled) fake_quantize_scaled;
decltype(ops::quantized_linear_forward) quantized_linear_forward;

template <>
inline constexpr bool kTakesBf16<fill> = true;
template <>
inline constexpr bool kTakesBf16<cast> = true;
template <>
inline constexpr bool kTakesBf16<add_norm_squared> = true;
template <>
inline constexpr bool kTakesBf16<average_weights> = true;
template <>
inline constexpr bool kTakesBf16<exchange> = true;
template <>
inline constexpr bool kTakesBf16<gated_forward> = true;
template <>
inline constexpr bool kTakesBf16<gated_backward> = true;
template <>
inline constexpr bool kTakesBf16<fp8_quantize> = true;
template <>
inline constexpr bool kTakesBf16<fp8_amax> = true;
template <>
inline constexpr bool kTakesBf16<fp8_matmul> = true;
template <>
inline constexpr bool kTakesBf16<quantize> = true;
template <>
inline constexpr bool kTakesBf16<dequantize> = true;
template <>
inline constexpr bool kTakesBf16<fake_quantize> = true;
template <>
inline constexpr bool kTakesBf16<int8_row_scales> = true;
template <>
inline constexpr bool kTakesBf16<quantize_scaled> = true;
template <>
inline constexpr bool kTakesBf16<fake_quantize_scaled> = true;

template <>
inline constexpr bool kTakesBf16<linear_activation_forward> = true;
template <>
inline constexpr bool kTakesBf16<linear_activation_backward_input> = true;

template <>
inline constexpr bool kMultipliesBf16<matmul> = true;
template <>
inline constexpr bool kMultipliesBf16<matmul_columns> = true;
template <>
inline constexpr bool kMultipliesBf16<linear_forward> = true;
template <>
inline constexpr bool kMultipliesBf16<linear_backward_input> = true;
template <>
inline constexpr bool kMultipliesBf16<linear_backward_weight> = true;

// Bytes of scratch memory, for the plan on `meta` and for the op itself. The GPU's functions are in
// cuda/workspace.hpp and cuda/library_workspace.hpp.
/// Widths of a key and of a value.
struct HeadWidths {
  Dim key;
  Dim value;
};
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

decltype(ops::mark_clock) mark_clock;
decltype(ops::publish_clock) publish_clock;
decltype(ops::activation_forward) activation_forward;
decltype(ops::activation_backward) activation_backward;
decltype(ops::gated_forward) gated_forward;
decltype(ops::gated_backward) gated_backward;
decltype(ops::rope) rope;
decltype(ops::attention_forward) attention_forward;
decltype(ops::attention_backward) attention_backward;
decltype(ops::attention_reference_forward) attention_reference_forward;
decltype(ops::attention_reference_backward) attention_reference_backward;
decltype(ops::attention_cached_forward) attention_cached_forward;
decltype(ops::rope_attention_paged_forward) rope_attention_paged_forward;
decltype(ops::attention_sinks_backward) attention_sinks_backward;
decltype(ops::merge_attention) merge_attention;
decltype(ops::argmax) argmax;
decltype(ops::sample) sample;
decltype(ops::dropout) dropout;
decltype(ops::add) add;
decltype(ops::softcap) softcap;
decltype(ops::take_columns) take_columns;
decltype(ops::put_columns) put_columns;
decltype(ops::softcap_backward) softcap_backward;
decltype(ops::fill) fill;
decltype(ops::fill_normal) fill_normal;
decltype(ops::cast) cast;
decltype(ops::root_mean_square) root_mean_square;
decltype(ops::embedding_forward) embedding_forward;
decltype(ops::quantized_embedding_forward) quantized_embedding_forward;
decltype(ops::embedding_backward) embedding_backward;
decltype(ops::position_backward) position_backward;
decltype(ops::sinusoidal_table) sinusoidal_table;
decltype(ops::augment_images) augment_images;
decltype(ops::patch_tokens_forward) patch_tokens_forward;
decltype(ops::patch_tokens_backward) patch_tokens_backward;
decltype(ops::sincos2d_table) sincos2d_table;
decltype(ops::pool_rows_forward) pool_rows_forward;
decltype(ops::pool_rows_backward) pool_rows_backward;
decltype(ops::class_cross_entropy) class_cross_entropy;
decltype(ops::drop_path) drop_path;
decltype(ops::softmax_cross_entropy) softmax_cross_entropy;
decltype(ops::softmax_statistics) softmax_statistics;
decltype(ops::vocabulary_cross_entropy) vocabulary_cross_entropy;
decltype(ops::matmul) matmul;
decltype(ops::matmul_columns) matmul_columns;
void linear_forward(Context& ctx, CView x, CView weight, CView bias, Accumulate accumulate, View y);
decltype(ops::linear_activation_forward) linear_activation_forward;
decltype(ops::linear_backward_input) linear_backward_input;
decltype(ops::linear_activation_backward_input) linear_activation_backward_input;
decltype(ops::linear_backward_weight) linear_backward_weight;
decltype(ops::gemm_library) gemm_library;
decltype(ops::gemm_platform) gemm_platform;
decltype(ops::algorithms_of) algorithms_of;
decltype(ops::adopt_algorithms) adopt_algorithms;
decltype(ops::chosen_algorithms) chosen_algorithms;
decltype(ops::add_norm_forward) add_norm_forward;
decltype(ops::norm_backward) norm_backward;
decltype(ops::head_norm_forward) head_norm_forward;
decltype(ops::head_norm_backward) head_norm_backward;
decltype(ops::adamw) adamw;
decltype(ops::sgd) sgd;
decltype(ops::average_weights) average_weights;
decltype(ops::exchange) exchange;
decltype(ops::muon_direction) muon_direction;
decltype(ops::muon_update) muon_update;
decltype(ops::scale) scale;
decltype(ops::normalize_matrices) normalize_matrices;
decltype(ops::matmul_gram) matmul_gram;
decltype(ops::matmul_add) matmul_add;
decltype(ops::add_norm_squared) add_norm_squared;
decltype(ops::finish_sums) finish_sums;
decltype(ops::begin_step) begin_step;
decltype(ops::finalize_step) finalize_step;
decltype(ops::fp8_quantize) fp8_quantize;
decltype(ops::fp8_amax) fp8_amax;
decltype(ops::fp8_scales) fp8_scales;
decltype(ops::fp8_transpose) fp8_transpose;
decltype(ops::fp8_matmul) fp8_matmul;
decltype(ops::quantize) quantize;
decltype(ops::dequantize) dequantize;
decltype(ops::fake_quantize) fake_quantize;
decltype(ops::int8_row_scales) int8_row_scales;
decltype(ops::quantize_scaled) quantize_scaled;
decltype(ops::fake_quantize_scaled) fake_quantize_scaled;
decltype(ops::quantized_linear_forward) quantized_linear_forward;

}  // namespace hyperslab::ops::cuda
