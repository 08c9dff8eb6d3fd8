// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// A linear layer of ours.
struct AdaptedLayer {
  std::string name;  ///< "blocks.0.attention.query"
  Dim outputs = 0;

  /// A checkpoint's tensors: "model/blocks.0.attention.query.lora_A.weight".
  [[nodiscard]] std::string a() const { return "model/" + name + ".lora_A.weight"; }
  [[nodiscard]] std::string b() const { return "model/" + name + ".lora_B.weight"; }
};

/// A linear module of transformers inside a block, and the layers of ours that it holds one below
/// the other.
struct AdaptedModule {
  std::string name;  ///< "transformer.h.0.attn.c_attn"
  Dim inputs = 0;
  std::vector<AdaptedLayer> layers;

  [[nodiscard]] bool is_fused() const { return layers.size() > 1; }
  [[nodiscard]] Dim outputs() const;
  /// PEFT's tensors: "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight".
  [[nodiscard]] std::string a() const { return "base_model.model." + name + ".lora_A.weight"; }
  [[nodiscard]] std::string b() const { return "base_model.model." + name + ".lora_B.weight"; }
  /// Its name in target_modules, for all blocks: "c_attn", "mlp.c_proj".
  [[nodiscard]] std::string target() const;
};

/// All modules of the model that adapters may be added to, in forward order.
[[nodiscard]] std::vector<AdaptedModule> adapted_modules(const model::ModelSpec& spec);

/// The modules of a Llama as Phi-3 has them: query, key and value are fused to `qkv_proj`, gate
/// and up to `gate_up_proj`. Here a Phi-3 becomes a Llama, which has them apart.
[[nodiscard]] std::vector<AdaptedModule> fused_as_phi3(const std::vector<AdaptedModule>& modules);
/// True if the name of a tensor is of a module that Phi-3 fuses.
[[nodiscard]] bool is_fused_by_phi3(const std::string& tensor);

/// True if a text of target_modules or of a pattern means the module: its name or the end of it
/// after a dot.
[[nodiscard]] bool means(const std::string& text, const AdaptedModule& module);

}  // namespace hyperslab::interop
