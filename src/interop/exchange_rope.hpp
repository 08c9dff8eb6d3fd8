// SPDX-License-Identifier: Apache-2.0
// Rotary positions in a config.json: rope_theta, rope_scaling, and rope_parameters of newer
// versions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config_reader.hpp"
#include "hyperslab/model/rope.hpp"

namespace hyperslab::interop {

/// `theta`: where the file gives none; `context`: its max_position_embeddings.
[[nodiscard]] model::RopeSpec read_rope(Import& in, double theta, Dim context);

void add_rope(const model::RopeSpec& rope, nlohmann::ordered_json& config);

}  // namespace hyperslab::interop
