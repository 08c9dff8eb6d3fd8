// SPDX-License-Identifier: Apache-2.0
// Configurations of vision transformers: ViTForImageClassification of transformers, and
// VisionTransformer of timm as its save_for_hf writes it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config_reader.hpp"
#include "hyperslab/interop/exchange.hpp"

namespace hyperslab::interop {

/// Complains of every choice of the model that has no counterpart in the library.
void check_vit_counterpart(const model::ModelSpec& spec, Library library, Complaints& complaints);

/// The keys of a config.json of transformers that are a vision transformer's own.
void add_vit_config(const model::ModelSpec& spec, double dropout_of_probabilities,
                    nlohmann::ordered_json& config);
/// config.json of timm. `augment`: eval's way of preparing an image.
[[nodiscard]] std::string timm_config_json(const model::ModelSpec& spec,
                                           const image::AugmentConfig& augment);

/// The model of a config.json of transformers with model_type vit.
[[nodiscard]] model::ModelSpec read_vit(Import& in);
/// The model of a config.json of timm. Checks all keys.
[[nodiscard]] model::ModelSpec read_timm(Import& in);

}  // namespace hyperslab::interop
