// SPDX-License-Identifier: Apache-2.0
// MixtralForCausalLM, Qwen3MoeForCausalLM and OlmoeForCausalLM: Llama's attention, with mixtures of
// experts as feed-forward networks. They differ in the norms of queries and keys.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "complaints.hpp"
#include "config_reader.hpp"
#include "exchange_names.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

inline constexpr std::string_view kMixtral = "mixtral";
inline constexpr std::string_view kQwen3Moe = "qwen3_moe";
inline constexpr std::string_view kOlmoe = "olmoe";
[[nodiscard]] constexpr bool has_experts(std::string_view type) {
  return type == kMixtral || type == kQwen3Moe || type == kOlmoe;
}

/// The class of a model of Llama's kind with experts.
struct ExpertsClass {
  std::string_view type;
  std::string_view name;
};
[[nodiscard]] ExpertsClass experts_class(const model::ModelSpec& spec);
/// Complains of every choice that the class of the model cannot have.
void check_experts_counterpart(const model::ModelSpec& spec, Complaints& complaints);
/// Adds the class's own keys to those of Llama's kind.
void add_experts_config(const model::ModelSpec& spec, nlohmann::ordered_json& config);

/// Reads the experts and windows of a model whose other sizes are read.
void read_experts(Import& in, std::string_view type, model::ModelSpec& spec);

/// Tensors of files: three for each expert, as files on the hub have them, or two for
/// all experts of a layer, as modules of transformers 5 have them.
enum class ExpertTensors : std::uint8_t { apart, fused };
/// The router and the experts of a layer.
[[nodiscard]] std::vector<ExchangedTensor> experts_of_layer(const model::ModelSpec& spec, Dim layer,
                                                            ExpertTensors kind);
/// True if a name is one of the fused tensors.
[[nodiscard]] bool is_of_fused_experts(std::string_view name);

}  // namespace hyperslab::interop
