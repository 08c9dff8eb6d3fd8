// SPDX-License-Identifier: Apache-2.0
// Defaults of keys that a config.json leaves out are those of transformers' GPT2Config and
// LlamaConfig.
#include "exchange_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::train {
namespace {

using model::ModelSpec;
using nlohmann::json;
using nlohmann::ordered_json;

/// Collects what does not fit, to be said at once.
class Complaints {
 public:
  void unless(bool holds, const std::string& text) {
    if (!holds) texts_.push_back(text);
  }
  void raise(ExitCode code, const std::string& begin) const {
    if (!texts_.empty()) throw Error(code, fmt::format("{}: {}", begin, fmt::join(texts_, "; ")));
  }

 private:
  std::vector<std::string> texts_;
};

/// Values of a config.json with their defaults.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& file) : config_(config), file_(file) {}

  [[nodiscard]] Dim size(const char* key, Dim fallback, Dim most = 1 << 24) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      fail(key, fmt::format("a whole number from 1 to {}", most), *value);
    }
    return value->get<Dim>();
  }
  /// A finite number of at least 0.
  [[nodiscard]] double real(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= 0) || std::isinf(value->get<double>())) {
      fail(key, "a number of at least 0", *value);
    }
    return value->get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "true or false", *value);
    return value->get<bool>();
  }
  [[nodiscard]] std::string text(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, "a text", *value);
    return value->get<std::string>();
  }
  /// The value of a key that is there and not null.
  [[nodiscard]] const json* find(const char* key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

 private:
  [[noreturn]] void fail(const char* key, const std::string& wanted, const json& found) const {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: {}: wanted {}, found {}", file_, key, wanted,
                            found.dump(-1, ' ', true, json::error_handler_t::replace)));
  }
  const json& config_;
  const std::string& file_;
};

ModelSpec read_gpt2(const ConfigReader& config, Complaints& complaints) {
  ModelSpec spec = model::preset("gpt2");
  spec.layers = config.size("n_layer", 12, 1 << 16);
  spec.width = config.size("n_embd", 768);
  spec.heads = spec.kv_heads = config.size("n_head", 12);
  spec.ffn_width = config.size("n_inner", 4 * spec.width);
  spec.vocabulary = config.size("vocab_size", 50257, 1LL << 31);
  spec.context = config.size("n_positions", 1024);
  spec.norm_eps = config.real("layer_norm_epsilon", 1e-5);
  spec.dropout = config.real("resid_pdrop", 0.1);
  spec.tie_embeddings = config.flag("tie_word_embeddings", true);
  const std::string activation = config.text("activation_function", "gelu_new");
  complaints.unless(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                    "activation_function is " + activation + ", only gelu_new is known");
  complaints.unless(config.flag("scale_attn_weights", true), "scale_attn_weights is false");
  complaints.unless(!config.flag("scale_attn_by_inverse_layer_idx", false),
                    "scale_attn_by_inverse_layer_idx is true");
  complaints.unless(!config.flag("add_cross_attention", false), "add_cross_attention is true");
  return spec;
}

/// The base of the rotary angles, which newer versions keep in rope_parameters.
double read_rope_theta(const ConfigReader& config, const std::string& file,
                       Complaints& complaints) {
  double theta = config.real("rope_theta", 10000);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* value = config.find(key);
    if (value == nullptr) continue;
    complaints.unless(value->is_object(), fmt::format("{} is no object", key));
    if (!value->is_object()) continue;
    const ConfigReader rope(*value, file);
    theta = rope.real("rope_theta", theta);
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    complaints.unless(type == "default",
                      fmt::format("{} has type {}, only default is known", key, type));
    complaints.unless(rope.real("partial_rotary_factor", 1) == 1, "partial_rotary_factor is not 1");
  }
  complaints.unless(config.real("partial_rotary_factor", 1) == 1, "partial_rotary_factor is not 1");
  return theta;
}

ModelSpec read_llama(const ConfigReader& config, const std::string& file, Complaints& complaints) {
  ModelSpec spec = model::preset("llama");
  spec.layers = config.size("num_hidden_layers", 32, 1 << 16);
  spec.width = config.size("hidden_size", 4096);
  spec.heads = config.size("num_attention_heads", 32);
  spec.kv_heads = config.size("num_key_value_heads", spec.heads);
  spec.ffn_width = config.size("intermediate_size", 11008);
  spec.vocabulary = config.size("vocab_size", 32000, 1LL << 31);
  spec.context = config.size("max_position_embeddings", 2048);
  spec.norm_eps = config.real("rms_norm_eps", 1e-6);
  spec.rope_theta = read_rope_theta(config, file, complaints);
  spec.tie_embeddings = config.flag("tie_word_embeddings", false);
  spec.bias = config.flag("attention_bias", false);
  complaints.unless(spec.bias == config.flag("mlp_bias", false),
                    "attention_bias and mlp_bias differ, here both or none have biases");
  const std::string activation = config.text("hidden_act", "silu");
  complaints.unless(activation == "silu", "hidden_act is " + activation + ", only silu is known");
  const Dim head_width = config.size("head_dim", spec.head_width());
  complaints.unless(head_width * spec.heads == spec.width,
                    fmt::format("head_dim {} is not hidden_size / num_attention_heads ({} / {})",
                                head_width, spec.width, spec.heads));
  return spec;
}

}  // namespace

void require_counterpart(const ModelSpec& spec) {
  Complaints complaints;
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds, fmt::format("model.{} must be {}", key, value));
  };
  const bool gpt2 = spec.family == "gpt2";
  wants(spec.norm_place == model::NormPlace::pre, "norm_place", "pre");
  if (gpt2) {
    wants(spec.position == model::Position::learned, "position", "learned");
    wants(spec.norm == ops::NormKind::layernorm, "norm", "layernorm");
    wants(spec.activation == ops::Activation::gelu_tanh, "activation", "gelu_tanh");
    wants(spec.bias, "bias", "true");
    wants(spec.kv_heads == spec.heads, "kv_heads", "model.heads");
  } else {
    wants(spec.position == model::Position::rope, "position", "rope");
    wants(spec.norm == ops::NormKind::rmsnorm, "norm", "rmsnorm");
    wants(spec.activation == ops::Activation::swiglu, "activation", "swiglu");
  }
  complaints.raise(ExitCode::usage,
                   fmt::format("this model of family {} has no counterpart as {}", spec.family,
                               gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"));
}

std::string config_json(const ModelSpec& spec, DType dtype, std::int64_t end_of_text) {
  const bool gpt2 = spec.family == "gpt2";
  ordered_json config;
  config["architectures"] = {gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  config["model_type"] = spec.family;
  config["vocab_size"] = spec.vocabulary;
  if (gpt2) {
    config["n_positions"] = spec.context;
    config["n_embd"] = spec.width;
    config["n_layer"] = spec.layers;
    config["n_head"] = spec.heads;
    config["n_inner"] = spec.ffn_width;
    config["activation_function"] = "gelu_new";
    config["layer_norm_epsilon"] = spec.norm_eps;
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[key] = spec.dropout;
  } else {
    config["max_position_embeddings"] = spec.context;
    config["hidden_size"] = spec.width;
    config["num_hidden_layers"] = spec.layers;
    config["num_attention_heads"] = spec.heads;
    config["num_key_value_heads"] = spec.kv_heads;
    config["head_dim"] = spec.head_width();
    config["intermediate_size"] = spec.ffn_width;
    config["hidden_act"] = "silu";
    config["rms_norm_eps"] = spec.norm_eps;
    config["rope_theta"] = spec.rope_theta;
    for (const char* key : {"attention_bias", "mlp_bias"}) config[key] = spec.bias;
  }
  config["initializer_range"] = spec.init_std;
  config["tie_word_embeddings"] = spec.tie_embeddings;
  const ordered_json end = end_of_text < 0 ? ordered_json() : ordered_json(end_of_text);
  for (const char* key : {"bos_token_id", "eos_token_id"}) config[key] = end;
  config["torch_dtype"] = dtype == DType::f32    ? "float32"
                          : dtype == DType::bf16 ? "bfloat16"
                                                 : "float16";
  return config.dump(2) + "\n";
}

std::string generation_config_json(std::int64_t end_of_text) {
  ordered_json config;
  config["_from_model_config"] = true;
  if (end_of_text >= 0) {
    for (const char* key : {"bos_token_id", "eos_token_id"}) config[key] = end_of_text;
  }
  return config.dump(2) + "\n";
}

ModelSpec spec_of_config(const std::string& text, const std::string& file) {
  json parsed;
  try {
    parsed = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: damaged JSON: {}", file, error.what()));
  }
  if (!parsed.is_object()) throw Error(ExitCode::checkpoint, file + ": wanted a JSON object");
  const ConfigReader config(parsed, file);
  const std::string type = config.text("model_type", "none");
  if (type != "gpt2" && type != "llama") {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: model_type is {}; gpt2 and llama are read", file, type));
  }
  Complaints complaints;
  complaints.unless(config.find("quantization_config") == nullptr, "the model is quantized");
  ModelSpec spec =
      type == "gpt2" ? read_gpt2(config, complaints) : read_llama(config, file, complaints);
  complaints.raise(ExitCode::checkpoint, file + ": this model cannot be imported");
  return spec;
}

}  // namespace hyperslab::train
