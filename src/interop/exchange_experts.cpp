// SPDX-License-Identifier: Apache-2.0
// Keys that a config.json leaves out have the defaults of transformers' MixtralConfig,
// Qwen3MoeConfig and OlmoeConfig.
#include "exchange_experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using model::QkNorm;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr Dim kMostExperts = 1 << 16;
constexpr Dim kMostOfModel = 1 << 18;  // a name of each is in memory
constexpr Dim kMostLayers = 1 << 16;
constexpr Dim kQwenWindow = 4096;  // if a file uses windows and leaves it out
constexpr std::string_view kFusedUp = ".mlp.experts.gate_up_proj";
constexpr std::string_view kFusedDown = ".mlp.experts.down_proj";

/// Values of absent keys.
struct Defaults {
  Dim count;
  Dim active;
  double balance_weight;
};
Defaults defaults_of(std::string_view type) {
  if (type == kMixtral) return {8, 2, 0.001};
  return type == kQwen3Moe ? Defaults{128, 8, 0.001} : Defaults{64, 8, 0.01};
}

/// Layers without experts, by decoder_sparse_step and mlp_only_layers.
void read_dense_layers(Import& in, ModelSpec& spec) {
  nn::ExpertsConfig& experts = spec.experts;
  experts.every = in.config.size("decoder_sparse_step", 1, kMostLayers);
  const json* list = in.config.find("mlp_only_layers");
  const auto is_layer = [](const json& one) { return one.is_number_unsigned(); };
  if (list != nullptr && !(list->is_array() && std::ranges::all_of(*list, is_layer))) {
    in.complaints.unless(false, "mlp_only_layers is no list of layers");
    return;
  }
  std::set<std::uint64_t> dense;
  if (list != nullptr) dense = list->get<std::set<std::uint64_t>>();
  const auto is_dense = [&](Dim layer) {
    return dense.contains(static_cast<std::uint64_t>(layer));
  };
  bool fits = true;
  for (Dim layer = experts.every - 1; layer < spec.layers; layer += experts.every) {
    if (!is_dense(layer)) continue;
    fits = fits && experts.first_dense + experts.every > layer;  // none before has experts
    experts.first_dense = layer + 1;
  }
  in.complaints.unless(
      fits, "mlp_only_layers names other layers than the first ones, which is not done here");
}

/// A window of all layers; one that hides nothing is none.
void read_window(Import& in, std::string_view type, ModelSpec& spec) {
  ConfigReader& config = in.config;
  const bool qwen = type == kQwen3Moe;
  const bool is_given = config.find("sliding_window") != nullptr;
  if (qwen && !config.flag("use_sliding_window", false)) return;
  const bool by_default = qwen && !config.has("sliding_window");
  const Dim window = is_given     ? config.size("sliding_window", 0)
                     : by_default ? kQwenWindow
                                  : spec.context;
  if (window < spec.context) spec.scores.window = window;
}

/// A list of the layers before `first_dense`.
ordered_json first_layers(Dim first_dense) {
  ordered_json layers = ordered_json::array();
  for (Dim layer = 0; layer < first_dense; ++layer) layers.push_back(layer);
  return layers;
}

/// Complains of choices of the router that no class has.
void check_router(const nn::ExpertsConfig& experts, Complaints& complaints) {
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds, fmt::format("experts.{} must be {}", key, value));
  };
  wants(experts.shared == 0, "shared", "0");
  wants(experts.score == ops::RouterScore::softmax, "score", "softmax");
  wants(experts.scale == 1, "scale", "1");
  wants(experts.groups == 1, "groups", "1");
  wants(!experts.has_bias(), "bias_rate", "0");
}

}  // namespace

ExpertsClass experts_class(const ModelSpec& spec) {
  switch (spec.qk_norm) {
    case QkNorm::none: return {kMixtral, "MixtralForCausalLM"};
    case QkNorm::head: return {kQwen3Moe, "Qwen3MoeForCausalLM"};
    case QkNorm::width: return {kOlmoe, "OlmoeForCausalLM"};
  }
  return {};
}

void check_experts_counterpart(const ModelSpec& spec, Complaints& complaints) {
  const nn::ExpertsConfig& experts = spec.experts;
  const std::string_view type = experts_class(spec).type;
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds, fmt::format("{} must be {}", key, value));
  };
  check_router(experts, complaints);
  const bool everywhere = experts.layers_of(spec.layers) == spec.layers;
  wants(everywhere || type == kQwen3Moe, "experts.every and first_dense",
        "1 and 0 without qk_norm head");
  wants(experts.normalize || type != kMixtral, "experts.normalize", "true without qk_norm");
  const bool windows = spec.scores.full_every == 0 && spec.scores.first_windowed == 0;
  wants(windows, "model.window_full_every and window_first_layer", "0 with experts");
  wants(spec.scores.window == 0 || type != kOlmoe, "model.window", "0 with qk_norm width");
  wants(spec.query_width() == spec.width || type != kOlmoe, "model.head_width",
        "model.width / model.heads with qk_norm width");
  wants(!spec.bias && !spec.has_qkv_bias(), "model.bias and qkv_bias", "false with experts");
  wants(!spec.parallel_block, "model.parallel_block", "false");
  wants(spec.position == model::Position::rope, "model.position", "rope");
  wants(spec.rope.fraction == 1, "model.rotary_fraction", "1 with experts");
  wants(spec.rope_local_theta == 0, "model.rope_local_theta", "0 with experts");
  wants(spec.norm == ops::NormKind::rmsnorm, "model.norm", "rmsnorm");
  wants(spec.activation == ops::Activation::swiglu, "model.activation", "swiglu");
  wants(spec.scores.scale == 0, "model.attention_scale", "0");
  wants(spec.scores.softcap == 0 && spec.logit_softcap == 0,
        "model.attention_softcap and logit_softcap", "0 with experts");
}

void add_experts_config(const ModelSpec& spec, ordered_json& config) {
  const nn::ExpertsConfig& experts = spec.experts;
  const std::string_view type = experts_class(spec).type;
  const bool qwen = type == kQwen3Moe;
  const ordered_json window =
      spec.scores.window > 0 ? ordered_json(spec.scores.window) : ordered_json();
  config[type == kMixtral ? "num_local_experts" : "num_experts"] = experts.count;
  config["num_experts_per_tok"] = experts.active;
  config["router_aux_loss_coef"] =
      experts.balance == nn::Balance::none ? 0.0 : experts.balance_weight;
  config["pad_token_id"] = nullptr;  // the default may be beyond the vocabulary
  if (qwen) {
    config["moe_intermediate_size"] = experts.width;
    config["decoder_sparse_step"] = experts.every;
    config["mlp_only_layers"] = first_layers(experts.first_dense);
    config["use_sliding_window"] = spec.scores.window > 0;
  } else {
    config["intermediate_size"] = experts.width;
  }
  if (type == kMixtral) {
    config["router_jitter_noise"] = 0.0;
  } else {
    config["attention_bias"] = false;
    config["norm_topk_prob"] = experts.normalize;
  }
  if (type == kOlmoe) {
    config["clip_qkv"] = nullptr;
  } else {
    config["sliding_window"] = window;
  }
}

void read_experts(Import& in, std::string_view type, ModelSpec& spec) {
  ConfigReader& config = in.config;
  nn::ExpertsConfig& experts = spec.experts;
  const Defaults usual = defaults_of(type);
  experts.count = config.size_of_two("num_experts", "num_local_experts", usual.count, kMostExperts,
                                     in.complaints);
  experts.active = config.size("num_experts_per_tok", usual.active, kMostExperts);
  in.complaints.unless(experts.active <= experts.count,
                       fmt::format("num_experts_per_tok is {}, more than the {} experts",
                                   experts.active, experts.count));
  in.complaints.unless(
      experts.count <= kMostOfModel / spec.layers,
      fmt::format("{} experts in each of {} layers are more than {}, which is not done here",
                  experts.count, spec.layers, kMostOfModel));
  experts.balance_weight = config.real("router_aux_loss_coef", usual.balance_weight);
  experts.normalize = type == kMixtral || config.flag("norm_topk_prob", false);
  experts.width = spec.ffn_width;
  if (type == kQwen3Moe) {
    constexpr Dim kQwenWidth = 768;
    experts.width = config.size("moe_intermediate_size", kQwenWidth);
    read_dense_layers(in, spec);
  }
  if (type != kOlmoe) return read_window(in, type, spec);
  in.complaints.unless(spec.query_width() == spec.width,
                       fmt::format("head_dim is {}, only hidden_size / num_attention_heads is done "
                                   "here with norms of the whole width",
                                   spec.head_width()));
}

std::vector<ExchangedTensor> experts_of_layer(const ModelSpec& spec, Dim layer,
                                              ExpertTensors kind) {
  const bool fused = kind == ExpertTensors::fused;
  const bool mixtral = experts_class(spec).type == kMixtral;
  const std::string theirs =
      fmt::format("model.layers.{}.{}", layer, mixtral && !fused ? "block_sparse_moe" : "mlp");
  const std::string ours = fmt::format("model/blocks.{}.experts", layer);
  const Dim E = spec.experts.count;
  const Dim C = spec.width;
  const Dim F = spec.experts.width;
  const Shape router = {E, C};
  std::vector<ExchangedTensor> tensors = {
      {theirs + ".gate.weight", router, {{ours + ".router.weight", router}}}};
  ExchangedTensor up = {theirs + ".experts.gate_up_proj", {E, 2 * F, C}, {}};
  ExchangedTensor down = {theirs + ".experts.down_proj", {E, C, F}, {}};
  for (Dim expert = 0; expert < E; ++expert) {
    const auto add = [&](const char* matrix, const char* name, const Shape& shape,
                         ExchangedTensor& together) {
      const NamedShape part = {fmt::format("{}.{}.{}.weight", ours, expert, matrix), shape};
      const std::string apart = fmt::format("{}.experts.{}.{}.weight", theirs, expert, name);
      fused ? together.ours.push_back(part) : tensors.push_back({apart, shape, {part}});
    };
    add("gate", mixtral ? "w1" : "gate_proj", {F, C}, up);
    add("up", mixtral ? "w3" : "up_proj", {F, C}, up);
    add("down", mixtral ? "w2" : "down_proj", {C, F}, down);
  }
  if (fused) tensors.insert(tensors.end(), {up, down});
  return tensors;
}

bool is_of_fused_experts(std::string_view name) {
  return name.ends_with(kFusedUp) || name.ends_with(kFusedDown);
}

}  // namespace hyperslab::interop
