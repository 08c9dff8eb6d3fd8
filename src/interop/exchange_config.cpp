// SPDX-License-Identifier: Apache-2.0
#include "exchange_config.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "complaints.hpp"
#include "exchange_experts.hpp"
#include "exchange_gemma.hpp"
#include "exchange_names.hpp"
#include "exchange_neox.hpp"
#include "exchange_olmo.hpp"
#include "exchange_rope.hpp"
#include "exchange_vit.hpp"
#include "exchange_windows.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using nlohmann::ordered_json;

/// null, an id, or a list of several.
ordered_json ids_json(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return {};
  return ids.size() == 1 ? ordered_json(ids.front()) : ordered_json(ids);
}

/// Attention's probabilities are dropped only if the deck asks for the path that keeps them.
double dropout_of_probabilities(const ModelSpec& spec) {
  return spec.attention == model::AttentionPath::reference ? spec.dropout : 0;
}

/// Whose model of Llama's kind it is.
struct LlamaClass {
  std::string_view type;
  std::string_view name;
};
LlamaClass llama_class(const ModelSpec& spec) {
  if (spec.experts) {
    const ExpertsClass found = experts_class(spec);
    return {found.type, found.name};
  }
  if (is_of_neox(spec)) return {"gpt_neox", "GPTNeoXForCausalLM"};
  if (is_of_gemma3(spec)) return {"gemma3_text", "Gemma3ForCausalLM"};
  if (is_of_gemma(spec)) return {"gemma2", "Gemma2ForCausalLM"};
  if (is_of_olmo2(spec)) return {"olmo2", "Olmo2ForCausalLM"};
  if (is_of_phi3(spec)) return {"phi3", "Phi3ForCausalLM"};
  if (spec.qk_norm == model::QkNorm::head) return {"qwen3", "Qwen3ForCausalLM"};
  if (spec.qkv_bias && !spec.bias) return {"qwen2", "Qwen2ForCausalLM"};
  if (spec.scores.window > 0) return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

/// Adds keys that only the configurations of some classes of Llama's kind have.
void add_llama_class(const ModelSpec& spec, ordered_json& config) {
  const std::string_view type = llama_class(spec).type;
  if (spec.experts) return add_experts_config(spec, config);
  if (type == "llama") {
    for (const char* key : {"attention_bias", "mlp_bias"}) config[key] = spec.bias;
  } else if (type == "phi3") {
    config["partial_rotary_factor"] = spec.rope.fraction;
    config["original_max_position_embeddings"] = spec.context;
    config["sliding_window"] =
        spec.scores.window > 0 ? ordered_json(spec.scores.window) : ordered_json();
    config["pad_token_id"] = nullptr;  // the default may be beyond the vocabulary
    for (const char* key : {"resid_pdrop", "embd_pdrop"}) config[key] = spec.dropout;
    config["attention_dropout"] = dropout_of_probabilities(spec);
  } else if (type == "mistral") {
    config["sliding_window"] = spec.scores.window;
  } else if (type == "gemma2" || type == "gemma3_text") {
    add_gemma_config(spec, config);
  } else if (type == "olmo2") {
    add_olmo2_config(dropout_of_probabilities(spec), config);
  } else {
    config["use_sliding_window"] = spec.scores.window > 0;
    if (spec.scores.window == 0) return;
    config["sliding_window"] = spec.scores.window;
    config["max_window_layers"] = spec.scores.first_windowed;
    config["layer_types"] = layer_types(spec);
  }
}

/// Complains of windows, biases and parallel blocks that the class of the model cannot have.
void check_llama_scores(const ModelSpec& spec, Complaints& complaints) {
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds, fmt::format("model.{} must be {}", key, value));
  };
  const model::AttentionSpec& scores = spec.scores;
  const std::string_view type = llama_class(spec).type;
  const bool alike = scores.full_every == 0 && scores.first_windowed == 0;
  wants(scores.window == 0 || type != "gpt_neox", "window", "0 with norm layernorm");
  wants(alike || (type != "mistral" && type != "phi3"), "window_full_every and window_first_layer",
        "0 without qk_norm or qkv_bias");
  wants(!spec.bias || type != "mistral", "bias", "false with a window");
  wants(spec.parallel_block ? type == "gpt_neox" : true, "parallel_block",
        "false without norm layernorm");
  if (is_of_gemma(spec)) return check_gemma_counterpart(spec, complaints);
  if (is_of_olmo2(spec)) {
    check_olmo2_counterpart(spec, complaints);
  } else {
    wants(spec.qk_norm != model::QkNorm::width, "qk_norm",
          "none or head without norm_place post_sublayer");
  }
  wants(scores.scale == 0, "attention_scale", "0");
  wants(scores.softcap == 0 && spec.logit_softcap == 0, "attention_softcap and logit_softcap",
        "0 without norm_place sandwich");
  wants(spec.rope_local_theta == 0, "rope_local_theta", "0 without norm_place sandwich");
}

std::string_view class_of(const ModelSpec& spec, Library library) {
  if (library == Library::timm) return "VisionTransformer of timm";
  switch (spec.family) {
    case model::Family::gpt2: return "GPT2LMHeadModel";
    case model::Family::llama: return llama_class(spec).name;
    case model::Family::vit: return "ViTForImageClassification";
  }
  return "?";
}

/// Complains of a key of the model that must have another value.
struct Wants {
  Complaints& complaints;
  void operator()(bool holds, const char* key, const char* value) const {
    complaints.unless(holds, fmt::format("model.{} must be {}", key, value));
  }
};

void check_gpt2_counterpart(const ModelSpec& spec, const Wants& wants) {
  wants.complaints.unless(!spec.experts, "experts.count must be 0");
  wants(spec.position == model::Position::learned, "position", "learned");
  wants(spec.norm == ops::NormKind::layernorm, "norm", "layernorm");
  wants(spec.activation == ops::Activation::gelu_tanh, "activation", "gelu_tanh");
  wants(spec.bias, "bias", "true");
  wants(spec.kv_heads == spec.heads, "kv_heads", "model.heads");
  wants(spec.query_width() == spec.width, "head_width", "model.width / model.heads");
  wants(spec.qk_norm == model::QkNorm::none, "qk_norm", "none");
  wants(!spec.parallel_block, "parallel_block", "false");
  wants(spec.scores == model::AttentionSpec() && spec.logit_softcap == 0,
        "window, attention_scale and softcaps", "0");
}

void check_llama_counterpart(const ModelSpec& spec, const Wants& wants) {
  if (spec.experts) return check_experts_counterpart(spec, wants.complaints);
  check_llama_scores(spec, wants.complaints);
  wants(spec.position == model::Position::rope, "position", "rope");
  if (is_of_neox(spec)) return check_neox_counterpart(spec, wants.complaints);
  const bool phi3 = is_of_phi3(spec);
  wants(!phi3 || spec.rope.scaling == model::RopeScaling::none, "rope_scaling",
        "none with rotary_fraction");
  wants(!phi3 || !spec.has_qkv_bias(), "bias and qkv_bias", "false with rotary_fraction");
  wants(!phi3 || spec.qk_norm == model::QkNorm::none, "qk_norm", "none with rotary_fraction");
  const bool qwen3 = spec.qk_norm == model::QkNorm::head;
  wants(!qwen3 || !spec.has_qkv_bias(), "bias and qkv_bias", "false with qk_norm");
  wants(spec.norm == ops::NormKind::rmsnorm, "norm", "rmsnorm");
  wants(spec.activation == ops::Activation::swiglu || is_of_gemma(spec), "activation", "swiglu");
}

}  // namespace

void require_counterpart(const ModelSpec& spec, Library library) {
  Complaints complaints;
  const Wants wants = {complaints};
  const bool gemma = is_of_gemma(spec);
  wants(spec.norm_place == model::NormPlace::pre || gemma || is_of_olmo2(spec), "norm_place",
        "pre");
  wants(spec.scale_of_embeddings() == 1 || gemma, "embedding_scale", "1");
  wants(!spec.scores.sinks, "attention_sinks", "false");
  wants(spec.parametrization().attention_scale(spec.head_width()) == 0, "mup_base_head_width",
        "0 or the head width");
  wants(!spec.bias || spec.has_qkv_bias() || spec.is_of_images(), "unbiased_qkv", "false");
  wants(library == Library::transformers || spec.is_of_images(), "family", "vit");
  if (spec.is_of_images()) {
    check_vit_counterpart(spec, library, complaints);
  } else if (spec.family == model::Family::gpt2) {
    check_gpt2_counterpart(spec, wants);
  } else {
    check_llama_counterpart(spec, wants);
  }
  complaints.raise(ExitCode::usage, fmt::format("this model of family {} has no counterpart as {}",
                                                name_of(spec.family), class_of(spec, library)));
}

std::string config_json(const ModelSpec& spec, DType dtype, const SpecialIds& ids) {
  const bool gpt2 = spec.family == model::Family::gpt2;
  ordered_json config;
  config["architectures"] = {class_of(spec, Library::transformers)};
  config["model_type"] =
      spec.family == model::Family::llama ? llama_class(spec).type : name_of(spec.family);
  if (spec.is_of_images()) {
    add_vit_config(spec, dropout_of_probabilities(spec), config);
  } else if (gpt2) {
    config["vocab_size"] = spec.vocabulary;
    config["n_positions"] = spec.context;
    config["n_embd"] = spec.width;
    config["n_layer"] = spec.layers;
    config["n_head"] = spec.heads;
    config["n_inner"] = spec.ffn_width;
    config["activation_function"] = "gelu_new";
    config["layer_norm_epsilon"] = spec.norm_eps;
    for (const char* key : {"resid_pdrop", "embd_pdrop"}) config[key] = spec.dropout;
    config["attn_pdrop"] = dropout_of_probabilities(spec);
  } else {
    config["vocab_size"] = spec.vocabulary;
    config["max_position_embeddings"] = spec.context;
    config["hidden_size"] = spec.width;
    config["num_hidden_layers"] = spec.layers;
    config["num_attention_heads"] = spec.heads;
    config["num_key_value_heads"] = spec.kv_heads;
    config["intermediate_size"] = spec.ffn_width;
    if (is_of_neox(spec)) {
      add_neox_config(spec, dropout_of_probabilities(spec), config);
    } else {
      config["head_dim"] = spec.head_width();
      config["hidden_act"] = "silu";
      config["rms_norm_eps"] = spec.norm_eps;
      add_rope(spec.rope, config);
      add_llama_class(spec, config);
    }
  }
  config["initializer_range"] = spec.init_std;
  if (!spec.is_of_images()) {
    config["tie_word_embeddings"] = spec.tie_embeddings;
    config["bos_token_id"] = ids.bos < 0 ? ordered_json() : ordered_json(ids.bos);
    config["eos_token_id"] = ids_json(ids.eos);
  }
  config["torch_dtype"] = dtype == DType::f32    ? "float32"
                          : dtype == DType::bf16 ? "bfloat16"
                                                 : "float16";
  return config.dump(2) + "\n";
}

std::string generation_config_json(const SpecialIds& ids, const std::vector<std::int64_t>& ends) {
  ordered_json config;
  if (ends == ids.eos)
    config["_from_model_config"] = true;  // else transformers takes config.json's
  if (ids.bos >= 0) config["bos_token_id"] = ids.bos;
  if (!ends.empty()) config["eos_token_id"] = ids_json(ends);
  return config.dump(2) + "\n";
}

}  // namespace hyperslab::interop
