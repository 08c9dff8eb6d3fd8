// SPDX-License-Identifier: Apache-2.0
// Rotary positions in a config.json: rope_theta, rope_scaling, and rope_parameters of newer
// versions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "config_reader.hpp"
#include "hyperslab/model/rope.hpp"

namespace hyperslab::interop {

/// `theta`: where the file gives none; `context`: its max_position_embeddings; `partial`: the class
/// of the model turns the share of each head that partial_rotary_factor says.
[[nodiscard]] model::RopeSpec read_rope(Import& in, double theta, Dim context, bool partial);

void add_rope(const model::RopeSpec& rope, nlohmann::ordered_json& config);

}  // namespace hyperslab::interop
