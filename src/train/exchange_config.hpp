// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/model/spec.hpp"

namespace hyperslab::train {

/// Throws Error(usage) that lists every choice of the model that transformers' model of the same
/// family has no counterpart for.
void require_counterpart(const model::ModelSpec& spec);

/// config.json of transformers. `end_of_text`: an id, or -1 where none is known.
[[nodiscard]] std::string config_json(const model::ModelSpec& spec, DType dtype,
                                      std::int64_t end_of_text);
[[nodiscard]] std::string generation_config_json(std::int64_t end_of_text);

/// The model that the text of a config.json describes; `file` is its name in messages. Throws
/// Error(checkpoint).
[[nodiscard]] model::ModelSpec spec_of_config(const std::string& text, const std::string& file);

}  // namespace hyperslab::train
