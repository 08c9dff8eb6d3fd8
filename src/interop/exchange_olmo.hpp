// SPDX-License-Identifier: Apache-2.0
// Olmo2ForCausalLM: Llama's sublayers, with norms of their outputs alone, and of the whole width of
// queries and keys.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "complaints.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// True if a model of Llama's kind has a counterpart here, if any.
[[nodiscard]] bool is_of_olmo2(const model::ModelSpec& spec);
void check_olmo2_counterpart(const model::ModelSpec& spec, Complaints& complaints);
void add_olmo2_config(double probability_dropout, nlohmann::ordered_json& config);

}  // namespace hyperslab::interop
