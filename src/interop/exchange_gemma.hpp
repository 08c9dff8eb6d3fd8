// SPDX-License-Identifier: Apache-2.0
// Gemma2ForCausalLM and Gemma3ForCausalLM (text): norms before and after sublayers whose factors
// are stored less 1, embeddings scaled by sqrt(width), windows in some layers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "complaints.hpp"
#include "config_reader.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// The model that model_type gemma2 or gemma3_text describes, but for common settings.
[[nodiscard]] model::ModelSpec read_gemma(Import& in, std::string_view type);

/// True if a model of Llama's kind has a counterpart among Gemma's, if any.
[[nodiscard]] bool is_of_gemma(const model::ModelSpec& spec);
/// Gemma 3 normalizes query and key heads.
[[nodiscard]] bool is_of_gemma3(const model::ModelSpec& spec);
void check_gemma_counterpart(const model::ModelSpec& spec, Complaints& complaints);
void add_gemma_config(const model::ModelSpec& spec, nlohmann::ordered_json& config);

}  // namespace hyperslab::interop
