// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// A tensor of ours.
struct NamedShape {
  std::string name;  ///< "model/blocks.0.attention.query.weight"
  Shape shape;
};

/// One tensor of Hugging Face and those of ours that it holds.
struct ExchangedTensor {
  std::string name;              ///< "transformer.h.0.attn.c_attn.weight"
  Shape shape;                   ///< as Hugging Face has it
  std::vector<NamedShape> ours;  ///< one below the other
  bool transposed = false;       ///< (inputs, outputs): GPT-2's Conv1D

  [[nodiscard]] Dim numel() const { return shape.numel(); }
};

/// All tensors of a model in forward order, under the names of GPT2LMHeadModel or
/// LlamaForCausalLM, as the family says.
[[nodiscard]] std::vector<ExchangedTensor> exchanged_tensors(const model::ModelSpec& spec);

/// y(j, i) = x(i, j) for x: (rows, columns).
void transpose(const float* x, Dim rows, Dim columns, float* y);

}  // namespace hyperslab::interop
