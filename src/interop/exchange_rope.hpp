// SPDX-License-Identifier: Apache-2.0
// Rotary positions in a config.json: rope_theta, rope_scaling, and rope_parameters of newer
// versions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "config_reader.hpp"
#include "hyperslab/model/rope.hpp"

namespace hyperslab::interop {

/// `theta`: used if the file gives none; `context`: its max_position_embeddings; `fraction`: the
/// share of each head that is turned if there is no partial_rotary_factor; absent if the class of
/// the model turns whole heads.
[[nodiscard]] model::RopeSpec read_rope(Import& in, double theta, Dim context,
                                        std::optional<double> fraction);
/// Reads one object, whose name in complaints is `key`.
[[nodiscard]] model::RopeSpec read_rope_of(Import& in, const std::string& key,
                                           const nlohmann::json& value, double theta, Dim context);
/// True if a fraction leaves an even number of dimensions, from 2, and is at most 1.
[[nodiscard]] bool turns_pairs(const model::RopeSpec& spec, Dim head_width);

void add_rope(const model::RopeSpec& rope, nlohmann::ordered_json& config);

}  // namespace hyperslab::interop
