// SPDX-License-Identifier: Apache-2.0
// Which layers have a sliding window, in a config.json: sliding_window, layer_types and the keys
// that stood for it earlier.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "config_reader.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// The window of the layers of which `windowed` is true. Complains if no model.window_full_every or
/// model.window_first_layer says which these are.
[[nodiscard]] model::AttentionSpec windows_of(Import& in, Dim window,
                                              const std::vector<bool>& windowed);
/// layer_types, or `fallback` where the file has none.
[[nodiscard]] std::vector<bool> windowed_layers(Import& in, Dim layers,
                                                const std::vector<bool>& fallback);
/// Every layer but those whose number, from 1 on, `full_every` divides; 0: every one.
[[nodiscard]] std::vector<bool> every_layer_but(Dim layers, Dim full_every);

/// layer_types of a model.
[[nodiscard]] nlohmann::ordered_json layer_types(const model::ModelSpec& spec);

}  // namespace hyperslab::interop
