// SPDX-License-Identifier: Apache-2.0
#include "quantized_linear.hpp"

#include "../backend.hpp"

namespace hyperslab::ops::cpu {

std::size_t quantized_linear_forward_workspace(int threads, const QuantizedProduct& product) {
  const auto [rows, M, K, format, activations, dtype] = product;
  if (activations == ActivationFormat::dynamic_int8) return int8_linear_workspace(threads, rows, K);
  return widened_linear_workspace(threads, rows, M, K, dtype);
}

void quantized_linear_forward(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                              ActivationFormat activations, View y) {
  const InstructionSet set = best_instruction_set();
  if (activations == ActivationFormat::dynamic_int8) {
    int8_linear(ctx, set, {x, weight, bias, y});
  } else {
    widened_linear(ctx, set, {x, weight, bias, y});
  }
}

}  // namespace hyperslab::ops::cpu
