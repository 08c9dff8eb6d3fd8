// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// A tensor of ours.
struct NamedShape {
  std::string name;  ///< "model/blocks.0.attention.query.weight"
  Shape shape;
};

/// One tensor of another library and those of ours that it holds.
struct ExchangedTensor {
  std::string name;              ///< "transformer.h.0.attn.c_attn.weight"
  Shape shape;                   ///< as the library has it
  std::vector<NamedShape> ours;  ///< one below the other
  bool transposed = false;       ///< (inputs, outputs): GPT-2's Conv1D

  [[nodiscard]] Dim numel() const { return shape.numel(); }
};

/// All tensors of a model in forward order, under the names of GPT2LMHeadModel,
/// LlamaForCausalLM or ViTForImageClassification, as the family says, or of timm.
[[nodiscard]] std::vector<ExchangedTensor> exchanged_tensors(
    const model::ModelSpec& spec, Library library = Library::transformers);
/// A tensor that vision transformers of timm alone have.
inline constexpr const char* kTimmPatches = "patch_embed.proj.weight";

/// y(j, i) = x(i, j) for x: (rows, columns).
void transpose(const float* x, Dim rows, Dim columns, float* y);

}  // namespace hyperslab::interop
