// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/quantized.hpp"
#include "int8_kernels.hpp"

namespace hyperslab::ops::cpu {

/// Operands of quantized_linear_forward.
struct QuantizedLinear {
  CView x;
  CQuantizedMatrix weight;
  CView bias;
  View y;
};

/// quantized_linear_forward with ActivationFormat::dynamic_int8 by the given instruction set, which
/// the machine must have.
void int8_linear(Context& ctx, InstructionSet set, const QuantizedLinear& operands);
[[nodiscard]] std::size_t int8_linear_workspace(int threads, Dim rows, Dim K);

/// quantized_linear_forward with ActivationFormat::none, which uses AVX-512 if `set` has it.
void widened_linear(Context& ctx, InstructionSet set, const QuantizedLinear& operands);
[[nodiscard]] std::size_t widened_linear_workspace(int threads, Dim rows, Dim M, Dim K,
                                                   DType dtype);

}  // namespace hyperslab::ops::cpu
