// SPDX-License-Identifier: Apache-2.0
// Models to and from folders of Hugging Face's transformers (GPT2LMHeadModel, LlamaForCausalLM,
// MixtralForCausalLM, ViTForImageClassification and others) and of timm (VisionTransformer).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/image/augment_config.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/io/safetensors.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// Whose names and shapes of tensors.
enum class Library : std::uint8_t { transformers, timm };

struct ExportOptions {
  std::string output;        ///< the folder to make
  DType dtype = DType::f32;  ///< f32, bf16 or f16
  Library library = Library::transformers;
  image::AugmentConfig preprocessing;  ///< preparation of images in eval, for a model of images
  std::string vocabulary;  ///< folder whose tokenizer files go along, or `bytes`; empty: none
  bool requires_vocabulary = false;  ///< an error if its files are not found
  std::uint64_t shard_bytes = io::ModelFolder::kShardBytes;
};

/// Writes config.json, generation_config.json, model.safetensors (in parts above 5 GB) and the
/// tokenizer's files, made if the vocabulary is `bytes`. One tensor is in memory at a time.
/// Throws Error(usage) that lists every choice of the model that the family has no counterpart for,
/// Error(data) for a vocabulary with more tokens than the model, Error(checkpoint), Error(storage).
void export_huggingface(const model::ModelSpec& model, const io::CheckpointReader& reader,
                        const ExportOptions& options);

struct ImportOptions {
  std::optional<double> dropout;          ///< in place of the dropouts of config.json
  std::vector<std::string> ignored_keys;  ///< that are not known here, and decide nothing
};

/// The model that config.json of a folder describes; a head that is tied there and differs from the
/// token embedding makes it untied. Throws Error(checkpoint): no such folder, a model type other
/// than those that are read, a setting that changes results and that our models do not have, or a
/// key that is not known and not among the ignored ones; all of them at once.
[[nodiscard]] model::ModelSpec huggingface_model(const std::string& folder,
                                                 const ImportOptions& options = {});

/// Reads the preprocessing of a model of images from its folder: mean, deviation,
/// interpolation and validation_crop, of timm's pretrained_cfg or transformers'
/// preprocessor_config.json; warns if the folder has none. Throws Error(checkpoint) that names
/// steps that are not done here, and keys that are neither known nor among the ignored ones.
[[nodiscard]] image::AugmentConfig image_preprocessing(
    const std::string& folder, const std::vector<std::string>& ignored_keys = {});

/// Turns the tensors of a folder into a checkpoint of step 0 under `directory`, with cleared
/// moments; of `meta`, deck and fingerprint of the data are the caller's. `spec` is
/// huggingface_model(folder). About 1 GB of memory, more if one tensor is larger. Throws
/// Error(checkpoint) for tensors that are missing, unknown or of another shape, and values that are
/// not finite; Error(storage), also if `directory` holds checkpoints already.
void import_huggingface(const std::string& folder, const model::ModelSpec& spec,
                        const std::string& directory, io::CheckpointMeta meta);

}  // namespace hyperslab::interop
