// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/io/safetensors.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// A tensor of ours.
struct NamedShape {
  std::string name;  ///< "model/blocks.0.attention.query.weight"
  Shape shape;
};

/// One tensor of another library and our tensors that it holds.
struct ExchangedTensor {
  std::string name;              ///< "transformer.h.0.attn.c_attn.weight"
  Shape shape;                   ///< as the library has it
  std::vector<NamedShape> ours;  ///< one below the other
  bool transposed = false;       ///< (inputs, outputs): GPT-2's Conv1D
  Dim heads = 1;     ///< ours lie head by head, the first head of each, then the second: GPT-NeoX
  float offset = 0;  ///< ours minus theirs: 1 for norms of Gemma
  float scale = 1;   ///< an export multiplies ours by it first: the final norm, by a logit scale

  [[nodiscard]] Dim numel() const { return shape.numel(); }
};

/// All tensors of a model in forward order as an export names them: GPT2LMHeadModel,
/// LlamaForCausalLM and others of its kind, GPTNeoXForCausalLM or ViTForImageClassification, as the
/// model says, or timm.
[[nodiscard]] std::vector<ExchangedTensor> exchanged_tensors(
    const model::ModelSpec& spec, Library library = Library::transformers);
/// The tensors of a folder that is read: their names show if it is timm's or Phi-3's, or has all
/// experts of a layer together.
[[nodiscard]] std::vector<ExchangedTensor> tensors_of_folder(const model::ModelSpec& spec,
                                                             const io::SafetensorsReader& folder);
/// True if Phi3ForCausalLM is the counterpart of a model of Llama's kind: the only one of them that
/// turns a part of each head.
[[nodiscard]] bool is_of_phi3(const model::ModelSpec& spec);

/// Rows of a matrix whose parts lie head by head become the parts one below the other, or back. x,
/// y: (heads * parts * rows, columns) of a head.
enum class HeadOrder : std::uint8_t { apart, interleaved };
void reorder_heads(const float* x, Dim heads, Dim parts, Dim head_elements, HeadOrder to, float* y);

/// y(j, i) = x(i, j) for x: (rows, columns).
void transpose(const float* x, Dim rows, Dim columns, float* y);

}  // namespace hyperslab::interop
