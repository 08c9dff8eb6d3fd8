// SPDX-License-Identifier: Apache-2.0
// Settings of timm and transformers for preparing an image for the model.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hyperslab/image/augment_config.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// preprocessor_config.json of transformers (ViTImageProcessor).
[[nodiscard]] std::string preprocessor_json(const model::ModelSpec& spec,
                                            const image::AugmentConfig& augment);
/// The keys of timm's pretrained_cfg about preprocessing.
void add_preprocessing(const image::AugmentConfig& augment, nlohmann::ordered_json& pretrained);

}  // namespace hyperslab::interop
