// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops {

/// The sizes on which the scratch memory of quantized_linear_forward depends.
struct QuantizedProduct {
  Dim rows = 0;
  Dim M = 0;
  Dim K = 0;
  WeightFormat format = WeightFormat::int8;
  ActivationFormat activations = ActivationFormat::none;
  DType dtype = DType::f32;
};

}  // namespace hyperslab::ops
