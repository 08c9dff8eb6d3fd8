// SPDX-License-Identifier: Apache-2.0
// GPTNeoXForCausalLM: layernorm, biases, rope of a part of each head, parallel sublayers.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "complaints.hpp"
#include "config_reader.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// The model that model_type gpt_neox describes, but for the settings that all models share.
[[nodiscard]] model::ModelSpec read_neox(Import& in);

/// True if a model of Llama's kind has a counterpart here, if any: the only one with layernorm.
[[nodiscard]] bool is_of_neox(const model::ModelSpec& spec);
void check_neox_counterpart(const model::ModelSpec& spec, Complaints& complaints);
void add_neox_config(const model::ModelSpec& spec, double probability_dropout,
                     nlohmann::ordered_json& config);

}  // namespace hyperslab::interop
