// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/kernel_class.hpp"

#include <algorithm>
#include <array>

#include "cuda/attention/cached_table.hpp"
#include "cuda/attention/table.hpp"
#include "cuda/experts/product_table.hpp"
#include "cuda/products/activation_table.hpp"
#include "cuda/products/decode_block.hpp"
#include "cuda/products/linear_table.hpp"

namespace hyperslab::ops {
namespace {

struct Pattern {
  std::string_view part;
  KernelClass kernel_class;
};

// Kernels of libraries, and of our own those that no table names. The first part that a name
// contains decides. A test compares the names of our own kernels with the sources; each_kernel
// applies the operation that is its template argument.
constexpr std::array kPatterns = {
    Pattern{"nccl", KernelClass::communication},
    Pattern{"peer_sum_kernel", KernelClass::communication},
    Pattern{"peer_add_kernel", KernelClass::communication},
    Pattern{"cudnn", KernelClass::attention},
    Pattern{"sdpa", KernelClass::attention},
    Pattern{"flash", KernelClass::attention},
    Pattern{"fmha", KernelClass::attention},
    Pattern{"attend_sinks", KernelClass::attention},
    Pattern{"merge_attention_kernel", KernelClass::attention},
    Pattern{"Update<", KernelClass::optimizer},
    Pattern{"begin_step_kernel", KernelClass::optimizer},
    Pattern{"finalize_step_kernel", KernelClass::optimizer},
    Pattern{"route", KernelClass::softmax},
    Pattern{"sort_", KernelClass::elementwise},
    Pattern{"order_arrivals_kernel", KernelClass::elementwise},
    Pattern{"gather_rows_kernel", KernelClass::elementwise},
    Pattern{"sum_rows_kernel", KernelClass::reduction},
    Pattern{"weighted_activation", KernelClass::elementwise},
    Pattern{"each_kernel", KernelClass::elementwise},
    Pattern{"each_amax_kernel", KernelClass::elementwise},
    Pattern{"softmax", KernelClass::softmax},
    Pattern{"loss_kernel", KernelClass::softmax},
    Pattern{"statistics_kernel", KernelClass::softmax},
    Pattern{"norm_kernel", KernelClass::reduction},
    Pattern{"norm_forward_kernel", KernelClass::reduction},
    Pattern{"norm_backward_kernel", KernelClass::reduction},
    Pattern{"norm_backward_ring_kernel", KernelClass::reduction},
    Pattern{"sum_partials_kernel", KernelClass::reduction},
    Pattern{"column_sums_kernel", KernelClass::reduction},
    Pattern{"squares_kernel", KernelClass::reduction},
    Pattern{"square_kernel", KernelClass::reduction},
    Pattern{"runs_kernel", KernelClass::reduction},
    Pattern{"losses_kernel", KernelClass::reduction},
    Pattern{"pairs_kernel", KernelClass::reduction},
    Pattern{"argmax_kernel", KernelClass::reduction},
    Pattern{"sample_kernel", KernelClass::reduction},
    Pattern{"mark_kernel", KernelClass::other},
    Pattern{"publish_kernel", KernelClass::other},
    Pattern{"publish_loads_kernel", KernelClass::other},
    Pattern{"nvjet", KernelClass::matmul},
    Pattern{"cutlass", KernelClass::matmul},
    Pattern{"gemm", KernelClass::matmul},
    Pattern{"gemv", KernelClass::matmul},
    Pattern{"cublas", KernelClass::matmul},
    Pattern{"xmma", KernelClass::matmul},
    Pattern{"any_rows_kernel", KernelClass::matmul},
    Pattern{"quantized_row_kernel", KernelClass::matmul},
    Pattern{"int8_kernel", KernelClass::matmul},
    Pattern{"low_rank_kernel", KernelClass::matmul},
    Pattern{"low_rank_sums_kernel", KernelClass::matmul},
    Pattern{"normalize_kernel", KernelClass::elementwise},
    Pattern{"images_kernel", KernelClass::elementwise},
    Pattern{"round_kernel", KernelClass::elementwise},
    Pattern{"round_normal_kernel", KernelClass::elementwise},
    Pattern{"widen_kernel", KernelClass::elementwise},
    Pattern{"fp8_amax", KernelClass::elementwise},
    Pattern{"fp8_quantize", KernelClass::elementwise},
    Pattern{"fp8_transpose", KernelClass::elementwise},
};

/// True if a row of the table names the kernel.
template <class Table>
bool is_named_in(const Table& table, std::string_view name) {
  for (const auto& row : table) {
    for (std::string_view rest = row.kernels; !rest.empty();) {
      const std::string_view kernel = rest.substr(0, rest.find(' '));
      if (name.find(kernel) != std::string_view::npos) return true;
      rest.remove_prefix(std::min(rest.size(), kernel.size() + 1));
    }
  }
  return false;
}

// Patterns of ops that are not elementwise. The first part that a name contains decides.
constexpr std::array kOpPatterns = {Pattern{"attention", KernelClass::attention},
                                    Pattern{"cross_entropy", KernelClass::softmax},
                                    Pattern{"softmax", KernelClass::softmax},
                                    Pattern{"matmul", KernelClass::matmul},
                                    Pattern{"linear", KernelClass::matmul},
                                    Pattern{"decode_block", KernelClass::matmul},
                                    Pattern{"low_rank", KernelClass::matmul},
                                    Pattern{"experts_forward", KernelClass::matmul},
                                    Pattern{"experts_backward", KernelClass::matmul},
                                    Pattern{"route", KernelClass::softmax},
                                    Pattern{"adamw", KernelClass::optimizer},
                                    Pattern{"sgd", KernelClass::optimizer},
                                    Pattern{"begin_step", KernelClass::optimizer},
                                    Pattern{"finalize_step", KernelClass::optimizer},
                                    Pattern{"norm", KernelClass::reduction},
                                    Pattern{"root_mean_square", KernelClass::reduction},
                                    Pattern{"position_backward", KernelClass::reduction}};

}  // namespace

std::string_view name_of(KernelClass kernel_class) {
  switch (kernel_class) {
    case KernelClass::matmul: return "matmul";
    case KernelClass::attention: return "attention";
    case KernelClass::softmax: return "softmax";
    case KernelClass::elementwise: return "elementwise";
    case KernelClass::reduction: return "reduction";
    case KernelClass::optimizer: return "optimizer";
    case KernelClass::communication: return "communication";
    case KernelClass::other: return "other";
  }
  return "?";
}

KernelClass class_of_kernel(std::string_view name) {
  if (is_named_in(cuda::kAttentionForward, name) || is_named_in(cuda::kAttentionBackward, name) ||
      is_named_in(cuda::kAttentionCached, name)) {
    return KernelClass::attention;
  }
  if (is_named_in(cuda::kActivationForward, name) || is_named_in(cuda::kActivationBackward, name) ||
      is_named_in(cuda::kLinearForward, name) || is_named_in(cuda::kDecodeBlock, name) ||
      is_named_in(cuda::kExpertsForward, name) || is_named_in(cuda::kExpertsBackwardInput, name) ||
      is_named_in(cuda::kExpertsBackwardWeight, name)) {
    return KernelClass::matmul;
  }
  for (const Pattern& pattern : kPatterns) {
    if (name.find(pattern.part) != std::string_view::npos) return pattern.kernel_class;
  }
  return KernelClass::other;
}

KernelClass class_of_op(std::string_view op) {
  for (const Pattern& pattern : kOpPatterns) {
    if (op.find(pattern.part) != std::string_view::npos) return pattern.kernel_class;
  }
  return KernelClass::elementwise;
}

}  // namespace hyperslab::ops
