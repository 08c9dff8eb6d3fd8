// SPDX-License-Identifier: Apache-2.0
// Keys that a config.json leaves out have the defaults of transformers' Gemma2Config and
// Gemma3TextConfig.
#include "exchange_gemma.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "exchange_rope.hpp"
#include "exchange_windows.hpp"

namespace hyperslab::interop {

using model::ModelSpec;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr double kLocalTheta = 10000;
constexpr double kGemma3Theta = 1e6;
constexpr Dim kGemma3FullEvery = 6;
constexpr Dim kGemma2FullEvery = 2;

/// The factor of products that query_pre_attn_scalar asks for; 0 if the head's width gives it.
void read_scores(Import& in, bool third, ModelSpec& spec) {
  ConfigReader& config = in.config;
  const double scalar = config.real("query_pre_attn_scalar", 256);
  in.complaints.unless(scalar > 0, "query_pre_attn_scalar is 0, expected more");
  spec.scores.scale =
      scalar == static_cast<double>(spec.head_width()) ? 0 : 1 / std::sqrt(std::max(scalar, 1e-30));
  const auto cap = [&](const char* key, double fallback) {
    return config.has(key) && config.find(key) == nullptr ? 0 : config.real(key, fallback);
  };
  // transformers reads the key of Gemma 3, too, and computes without it.
  const double softcap = cap("attn_logit_softcapping", third ? 0 : 50);
  in.complaints.unless(!third || softcap == 0,
                       "attn_logit_softcapping is not used by transformers' Gemma 3: set it to "
                       "null");
  spec.scores.softcap = softcap;
  spec.logit_softcap = cap("final_logit_softcapping", third ? 0 : 30);
}

/// query_pre_attn_scalar of a model, a whole number there.
double scalar_of(const ModelSpec& spec) {
  const double scale = spec.scores.scale;
  return scale > 0 ? 1 / (scale * scale) : static_cast<double>(spec.head_width());
}

void read_windows(Import& in, bool third, ModelSpec& spec) {
  ConfigReader& config = in.config;
  const Dim full_every =
      third ? config.size("sliding_window_pattern", kGemma3FullEvery) : kGemma2FullEvery;
  (void)config.find("_sliding_window_pattern");  // transformers' own form of the key
  const Dim window = config.size("sliding_window", 4096);
  const model::AttentionSpec layers = windows_of(
      in, window, windowed_layers(in, spec.layers, every_layer_but(spec.layers, full_every)));
  spec.scores.window = layers.window;
  spec.scores.full_every = layers.full_every;
  spec.scores.first_windowed = layers.first_windowed;
}

void read_ropes(Import& in, bool third, ModelSpec& spec) {
  if (!third) {
    spec.rope = read_rope(in, kLocalTheta, spec.context, std::nullopt);
    return;
  }
  spec.rope_local_theta = in.config.real("rope_local_base_freq", kLocalTheta);
  const json* kinds = in.config.find("rope_parameters");
  if (kinds == nullptr || !kinds->contains("full_attention")) {
    spec.rope = read_rope(in, kGemma3Theta, spec.context, std::nullopt);
  } else {
    spec.rope = read_rope_of(in, "rope_parameters.full_attention", (*kinds)["full_attention"],
                             kGemma3Theta, spec.context);
    const model::RopeSpec local = read_rope_of(in, "rope_parameters.sliding_attention",
                                               kinds->value("sliding_attention", json::object()),
                                               spec.rope_local_theta, spec.context);
    in.complaints.unless(local.scaling == model::RopeScaling::none,
                         "rope_parameters.sliding_attention has another type than default");
    spec.rope_local_theta = local.theta;
  }
  const bool by_context = spec.rope.scaling == model::RopeScaling::llama3 ||
                          spec.rope.scaling == model::RopeScaling::yarn;
  in.complaints.unless(!by_context || in.config.find("original_max_position_embeddings") == nullptr,
                       "original_max_position_embeddings is not used by transformers' Gemma 3: "
                       "remove it, or move it into rope_parameters.full_attention");
  if (spec.scores.window == 0) spec.rope_local_theta = 0;
}

}  // namespace

ModelSpec read_gemma(Import& in, std::string_view type) {
  const bool third = type == "gemma3_text";
  ConfigReader& config = in.config;
  ModelSpec spec = model::preset(model::Family::llama);
  spec.norm_place = model::NormPlace::sandwich;
  spec.qk_norm = third ? model::QkNorm::head : model::QkNorm::none;
  spec.layers = config.size("num_hidden_layers", 26, 1 << 16);
  spec.width = config.size("hidden_size", 2304);
  spec.heads = config.size("num_attention_heads", 8);
  spec.kv_heads = config.size("num_key_value_heads", 4);
  const Dim head_width = config.size("head_dim", 256);
  if (head_width * spec.heads != spec.width) spec.own_head_width = head_width;
  spec.ffn_width = config.size("intermediate_size", 9216);
  spec.vocabulary = config.size("vocab_size", third ? 262208 : 256000, 1LL << 31);
  spec.context = config.size("max_position_embeddings", third ? 131072 : 8192);
  spec.norm_eps = config.real("rms_norm_eps", 1e-6);
  read_scores(in, third, spec);
  read_windows(in, third, spec);
  read_ropes(in, third, spec);
  const std::string old_name = config.text("hidden_act", "gelu_pytorch_tanh");
  const std::string activation = config.text("hidden_activation", old_name);
  static const std::set<std::string> tanh_gelu = {"gelu_pytorch_tanh", "gelu_new"};
  const bool is_tanh = tanh_gelu.contains(activation);
  in.complaints.unless(
      is_tanh || activation == "gelu",
      "hidden_activation is " + activation + ", only gelu_pytorch_tanh and gelu are known");
  spec.activation = is_tanh ? ops::Activation::geglu_tanh : ops::Activation::geglu;
  in.complaints.unless(!config.flag("attention_bias", false),
                       "attention_bias is true, only false is done here");
  in.complaints.unless(!config.flag("use_bidirectional_attention", false),
                       "use_bidirectional_attention is true, only false is done here");
  const double probabilities = config.real("attention_dropout", 0);
  read_dropout(in, spec, 0, 0, probabilities, fmt::format("attention_dropout {}", probabilities));
  return spec;
}

bool is_of_gemma(const ModelSpec& spec) {
  return spec.family == model::Family::llama && spec.norm_place == model::NormPlace::sandwich &&
         !spec.experts;
}

bool is_of_gemma3(const ModelSpec& spec) {
  return is_of_gemma(spec) && spec.qk_norm == model::QkNorm::head;
}

void check_gemma_counterpart(const ModelSpec& spec, Complaints& complaints) {
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds,
                      fmt::format("model.{} must be {} with norm_place sandwich", key, value));
  };
  const bool third = is_of_gemma3(spec);
  const double root = std::sqrt(static_cast<double>(spec.width));
  wants(std::abs(spec.scale_of_embeddings() - root) < 1e-5 * root, "embedding_scale",
        "sqrt(model.width)");
  wants(spec.activation == ops::Activation::geglu_tanh || spec.activation == ops::Activation::geglu,
        "activation", "geglu_tanh or geglu");
  const double scalar = scalar_of(spec);
  wants(scalar < 1e9 && std::abs(scalar - std::round(scalar)) < 1e-6 * scalar, "attention_scale",
        "one over the root of a whole number");
  wants(!spec.has_qkv_bias(), "bias and qkv_bias", "false");
  wants(spec.rope.fraction == 1, "rotary_fraction", "1");
  wants(third || spec.rope.scaling == model::RopeScaling::none, "rope_scaling",
        "none without qk_norm");
  wants(third || spec.rope_local_theta == 0, "rope_local_theta", "0 without qk_norm");
  // Layers with a window are never scaled there.
  const bool scales_windows = spec.scores.window > 0 && spec.rope_local_theta == 0 &&
                              spec.rope.scaling != model::RopeScaling::none;
  wants(!third || !scales_windows, "rope_local_theta",
        "above 0 with qk_norm, a window and rope_scaling");
  wants(!third || spec.scores.softcap == 0, "attention_softcap", "0 with qk_norm");
}

void add_gemma_config(const ModelSpec& spec, ordered_json& config) {
  const bool third = is_of_gemma3(spec);
  // Some programs read the older of the two keys.
  config["hidden_act"] = config["hidden_activation"] =
      spec.activation == ops::Activation::geglu_tanh ? "gelu_pytorch_tanh" : "gelu";
  config["query_pre_attn_scalar"] = std::llround(scalar_of(spec));
  const auto cap = [](double value) { return value > 0 ? ordered_json(value) : ordered_json(); };
  config["attn_logit_softcapping"] = cap(spec.scores.softcap);
  config["final_logit_softcapping"] = cap(spec.logit_softcap);
  config["sliding_window"] = spec.scores.window > 0 ? spec.scores.window : spec.context;
  config["layer_types"] = layer_types(spec);
  config["attention_bias"] = false;
  config["pad_token_id"] = nullptr;  // the default may be beyond the vocabulary
  if (third) {
    config["rope_local_base_freq"] =
        spec.rope_local_theta > 0 ? spec.rope_local_theta : spec.rope.theta;
  }
}

}  // namespace hyperslab::interop
