// SPDX-License-Identifier: Apache-2.0
// Keys that a config.json leaves out have the defaults of transformers' GPTNeoXConfig.
#include "exchange_neox.hpp"

#include <nlohmann/json.hpp>

#include "exchange_rope.hpp"

namespace hyperslab::interop {

using model::ModelSpec;
using nlohmann::ordered_json;

namespace {

void read_neox_rope(Import& in, ModelSpec& spec) {
  const double theta = in.config.real("rotary_emb_base", 10000);
  const double fraction = in.config.real("rotary_pct", 0.25);
  spec.rope = read_rope(in, theta, spec.context, fraction);
  in.complaints.unless(
      turns_pairs(spec.rope, spec.head_width()),
      fmt::format("rotary_pct is {}, expected at most 1 and an even number, from 2, of the {} "
                  "dimensions of a head",
                  spec.rope.fraction, spec.head_width()));
}

}  // namespace

ModelSpec read_neox(Import& in) {
  ConfigReader& config = in.config;
  ModelSpec spec = model::preset(model::Family::llama);
  spec.norm = ops::NormKind::layernorm;
  spec.bias = true;
  spec.layers = config.size("num_hidden_layers", 44, 1 << 16);
  spec.width = config.size("hidden_size", 6144);
  spec.heads = spec.kv_heads = config.size("num_attention_heads", 64);
  spec.ffn_width = config.size("intermediate_size", 24576);
  spec.vocabulary = config.size("vocab_size", 50432, 1LL << 31);
  spec.context = config.size("max_position_embeddings", 2048);
  spec.norm_eps = config.real("layer_norm_eps", 1e-5);
  spec.parallel_block = config.flag("use_parallel_residual", true);
  const bool divides = spec.width % spec.heads == 0;
  in.complaints.unless(divides, fmt::format("hidden_size {} is no multiple of "
                                            "num_attention_heads {}",
                                            spec.width, spec.heads));
  if (divides) read_neox_rope(in, spec);
  const std::string activation = config.text("hidden_act", "gelu");
  const bool is_tanh =
      activation == "gelu_new" || activation == "gelu_fast" || activation == "gelu_pytorch_tanh";
  in.complaints.unless(is_tanh || activation == "gelu",
                       "hidden_act is " + activation + ", only gelu and its tanh form are known");
  spec.activation = is_tanh ? ops::Activation::gelu_tanh : ops::Activation::gelu;
  in.complaints.unless(config.flag("attention_bias", true),
                       "attention_bias is false, only true is done here");
  (void)config.find("classifier_dropout");  // of another head
  const double residual = config.real("hidden_dropout", 0);
  const double probabilities = config.real("attention_dropout", 0);
  read_dropout(in, spec, residual, residual, probabilities,
               fmt::format("hidden_dropout {}, attention_dropout {}", residual, probabilities));
  return spec;
}

bool is_of_neox(const ModelSpec& spec) {
  return spec.family == model::Family::llama && spec.norm == ops::NormKind::layernorm &&
         !spec.experts;
}

void check_neox_counterpart(const ModelSpec& spec, Complaints& complaints) {
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds, fmt::format("model.{} must be {} with norm layernorm", key, value));
  };
  wants(spec.bias, "bias", "true");
  wants(spec.activation == ops::Activation::gelu || spec.activation == ops::Activation::gelu_tanh,
        "activation", "gelu or gelu_tanh");
  wants(spec.kv_heads == spec.heads, "kv_heads", "model.heads");
  wants(spec.query_width() == spec.width, "head_width", "model.width / model.heads");
  wants(spec.qk_norm == model::QkNorm::none, "qk_norm", "none");
  wants(spec.rope.scaling == model::RopeScaling::none, "rope_scaling", "none");
}

void add_neox_config(const ModelSpec& spec, double probability_dropout, ordered_json& config) {
  config["hidden_act"] = spec.activation == ops::Activation::gelu ? "gelu" : "gelu_new";
  config["layer_norm_eps"] = spec.norm_eps;
  config["rotary_pct"] = spec.rope.fraction;
  config["rotary_emb_base"] = spec.rope.theta;
  config["use_parallel_residual"] = spec.parallel_block;
  config["attention_bias"] = true;
  config["hidden_dropout"] = spec.dropout;
  config["attention_dropout"] = probability_dropout;
}

}  // namespace hyperslab::interop
