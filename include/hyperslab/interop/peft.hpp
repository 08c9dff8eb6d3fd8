// SPDX-License-Identifier: Apache-2.0
// Adapters to and from folders of Hugging Face's PEFT (LoRA): adapter_config.json and
// adapter_model.safetensors, for GPT2LMHeadModel and LlamaForCausalLM.
#pragma once

#include <string>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/io/safetensors.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/nn/adapter_config.hpp"

namespace hyperslab::interop {

struct PeftExportOptions {
  std::string output;        ///< the folder to make
  DType dtype = DType::f32;  ///< f32, bf16 or f16
  std::string base_name;     ///< base_model_name_or_path; empty: null
};

/// Writes the adapters of a checkpoint. GPT-2's c_attn is one module there and query, key and value
/// here. If the three have equal A, as after an import, they become one adapter of their rank;
/// otherwise one of three times their rank, whose B has their B as blocks on its diagonal, and
/// rank_pattern and alpha_pattern say so. Throws as export_huggingface().
void export_peft(const model::ModelSpec& model, const nn::AdapterConfig& adapter,
                 const io::CheckpointReader& reader, const PeftExportOptions& options);

/// True if there is an adapter_config.json.
[[nodiscard]] bool is_peft_folder(const std::string& folder);

struct AdaptedModule;

/// A folder with adapters for a model.
class PeftFolder {
 public:
  /// `base`: the model that the adapters are added to. Throws Error(checkpoint), all reasons at
  /// once: settings that are not done here, modules that are unknown or outside blocks, modules
  /// that not all blocks have adapters for, ranks that differ unless export_peft() made them so,
  /// tensors that are missing or of another shape.
  PeftFolder(std::string folder, const model::ModelSpec& base);
  PeftFolder(const PeftFolder&) = delete;
  PeftFolder& operator=(const PeftFolder&) = delete;
  PeftFolder(PeftFolder&&) = delete;
  PeftFolder& operator=(PeftFolder&&) = delete;
  ~PeftFolder();

  /// The adapters, as deck section `adapter` describes them.
  [[nodiscard]] const nn::AdapterConfig& adapter() const { return adapter_; }
  /// Makes a checkpoint of step 0 of them under `directory`, with cleared moments; of `meta`, deck,
  /// model, vocabulary and fingerprint of the base are the caller's. Throws Error(checkpoint) for
  /// values that are not finite; Error(storage), also if `directory` holds checkpoints already.
  void import(const std::string& directory, io::CheckpointMeta meta) const;

 private:
  void find_targets(const std::vector<AdaptedModule>& all, bool has_experts);
  [[nodiscard]] std::vector<bool> used_layers(const AdaptedModule& module) const;

  struct Layer;
  [[nodiscard]] static Layer split(const AdaptedModule& module, std::size_t index, Dim rank,
                                   CView a, CView b);
  [[nodiscard]] std::vector<Layer> read_layers() const;

  std::string folder_;
  io::SafetensorsReader reader_;
  nn::AdapterConfig adapter_;
  std::vector<AdaptedModule> modules_;  ///< that have adapters
  bool in_blocks_ = false;              ///< modules with several outputs have an A for each
};

}  // namespace hyperslab::interop
