// SPDX-License-Identifier: Apache-2.0
#include "exchange_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "interop/exchange_models.hpp"
#include "io/safetensors/files.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string export_refusal(const ModelSpec& spec) {
  return test::refusal(ExitCode::usage, [&] { require_counterpart(spec); });
}

TEST(ExchangeConfig, ChoicesWithoutACounterpartAreAllNamed) {
  ModelSpec gpt2 = small(model::Family::gpt2);
  ModelSpec llama = small(model::Family::llama);
  EXPECT_NO_THROW(require_counterpart(gpt2));
  EXPECT_NO_THROW(require_counterpart(llama));

  gpt2.position = model::Position::sinusoidal;
  gpt2.norm = ops::NormKind::rmsnorm;
  gpt2.norm_place = model::NormPlace::post;
  gpt2.activation = ops::Activation::relu;
  gpt2.bias = false;
  gpt2.kv_heads = 2;
  gpt2.embedding_scale = 0;  // with sinusoidal positions: the root of the width
  llama.position = model::Position::none;
  llama.norm = ops::NormKind::none;
  llama.norm_place = model::NormPlace::post;
  llama.activation = ops::Activation::geglu;

  EXPECT_THAT(
      export_refusal(gpt2),
      AllOf(HasSubstr("no counterpart as GPT2LMHeadModel"),
            HasSubstr("model.position must be learned"), HasSubstr("model.norm must be layernorm"),
            HasSubstr("model.norm_place must be pre"),
            HasSubstr("model.activation must be gelu_tanh"), HasSubstr("model.bias must be true"),
            HasSubstr("model.embedding_scale must be 1"),
            HasSubstr("model.kv_heads must be model.heads")));
  EXPECT_THAT(
      export_refusal(llama),
      AllOf(HasSubstr("no counterpart as LlamaForCausalLM"),
            HasSubstr("model.position must be rope"), HasSubstr("model.norm must be rmsnorm"),
            HasSubstr("model.norm_place must be pre"), HasSubstr("model.activation must be swiglu"),
            Not(HasSubstr("bias"))));
}

TEST(ExchangeConfig, WhatASiblingOfLlamaLacksIsNamed) {
  ModelSpec mistral = small(model::Family::llama);
  mistral.scores.window = 4;
  EXPECT_NO_THROW(require_counterpart(mistral));
  mistral.scores.full_every = 2;
  mistral.scores.softcap = 5;
  mistral.scores.sinks = true;
  mistral.parallel_block = true;
  mistral.mup_base_width = 4;
  mistral.mup_base_head_width = 1;
  EXPECT_THAT(export_refusal(mistral),
              AllOf(HasSubstr("no counterpart as MistralForCausalLM"),
                    HasSubstr("model.window_full_every and window_first_layer must be 0"),
                    HasSubstr("model.parallel_block must be false"),
                    HasSubstr("model.attention_sinks must be false"),
                    HasSubstr("model.mup_base_head_width must be 0 or the head width"),
                    HasSubstr("model.attention_softcap and logit_softcap must be 0")));
  ModelSpec gemma = small(model::Family::llama);
  gemma.norm_place = model::NormPlace::sandwich;
  gemma.rope_local_theta = 100;
  gemma.scores.scale = 0.3;
  EXPECT_THAT(export_refusal(gemma),
              AllOf(HasSubstr("no counterpart as Gemma2ForCausalLM"),
                    HasSubstr("model.embedding_scale must be sqrt(model.width)"),
                    HasSubstr("model.activation must be geglu_tanh or geglu"),
                    HasSubstr("model.attention_scale must be one over the root"),
                    HasSubstr("model.rope_local_theta must be 0 without qk_norm")));
  gemma.qk_norm = model::QkNorm::head;
  gemma.scores.softcap = 5;
  EXPECT_THAT(export_refusal(gemma), AllOf(HasSubstr("no counterpart as Gemma3ForCausalLM"),
                                           HasSubstr("model.attention_softcap must be 0")));
  gemma.scores.window = 4;
  gemma.rope_local_theta = 0;
  gemma.rope.scaling = model::RopeScaling::linear;
  EXPECT_THAT(export_refusal(gemma), HasSubstr("model.rope_local_theta must be above 0"));
  gemma.scores.window = 0;
  EXPECT_THAT(export_refusal(gemma), Not(HasSubstr("rope_local_theta")));
  ModelSpec neox = small(model::Family::llama);
  neox.norm = ops::NormKind::layernorm;
  neox.kv_heads = 1;
  neox.scores.window = 4;
  EXPECT_THAT(export_refusal(neox), AllOf(HasSubstr("no counterpart as GPTNeoXForCausalLM"),
                                          HasSubstr("model.bias must be true"),
                                          HasSubstr("model.activation must be gelu or gelu_tanh"),
                                          HasSubstr("model.kv_heads must be model.heads"),
                                          HasSubstr("model.window must be 0 with norm layernorm")));
}

ModelSpec spec_of(const std::string& text) { return read_foreign_config(text, "").spec; }

/// A config.json as transformers writes it, with one key changed.
std::string changed(model::Family family, const std::string& key, const json& value) {
  json config = json::parse(config_json(small(family), DType::f32, {}));
  config[key] = value;
  return config.dump();
}

TEST(ExchangeConfig, ForeignSettingsThatChangeResultsAreRefused) {
  struct Case {
    model::Family family;
    const char* key;
    json value;
    const char* says;
  };
  const std::vector<Case> cases = {
      {model::Family::gpt2, "model_type", "falcon", "model_type is falcon"},
      {model::Family::gpt2, "activation_function", "relu", "activation_function is relu"},
      {model::Family::gpt2, "scale_attn_weights", false, "scale_attn_weights"},
      {model::Family::gpt2, "scale_attn_by_inverse_layer_idx", true,
       "scale_attn_by_inverse_layer_idx"},
      {model::Family::gpt2, "add_cross_attention", true, "add_cross_attention"},
      {model::Family::gpt2, "n_layer", 0, "n_layer: expected a whole number from 1"},
      {model::Family::gpt2, "n_head", -4, "n_head: expected"},
      {model::Family::gpt2, "n_embd", "wide", "n_embd: expected"},
      {model::Family::gpt2, "layer_norm_epsilon", -1.0, "layer_norm_epsilon: expected"},
      {model::Family::gpt2, "tie_word_embeddings", 1,
       "tie_word_embeddings: expected true or false"},
      {model::Family::llama, "hidden_act", "gelu", "hidden_act is gelu"},
      {model::Family::llama, "mlp_bias", true, "attention_bias and mlp_bias differ"},
      {model::Family::llama,
       "rope_scaling",
       {{"rope_type", "longrope"}, {"factor", 8.0}},
       "type longrope"},
      {model::Family::llama, "rope_scaling", {{"type", "dynamic"}}, "type dynamic"},
      {model::Family::llama,
       "rope_scaling",
       {{"rope_type", "dynamic"}, {"factor", 2.0}},
       "the model is the same up to max_position_embeddings"},
      {model::Family::llama,
       "rope_parameters",
       {{"partial_rotary_factor", 0.5}},
       "partial_rotary_factor"},
      {model::Family::llama,
       "rope_parameters",
       {{"full_attention", {{"rope_theta", 7.0}}}},
       "full_attention"},
      {model::Family::llama, "rope_scaling", {{"factor", 8.0}}, "rope_scaling has factor"},
      {model::Family::llama,
       "rope_scaling",
       {{"type", "linear"}, {"factor", 0.5}},
       "factor 0.5 is"},
      {model::Family::llama,
       "rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8.0}, {"high_freq_factor", 0.5}},
       "high_freq_factor must be above low_freq_factor"},
      {model::Family::llama,
       "rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 8.0}, {"mscale", 0.7}},
       "rope_scaling has mscale"},
      {model::Family::llama, "rope_theta", 0.5, "rope_theta is 0.5"},
      {model::Family::llama,
       "rope_parameters",
       {{"logits_scaling", 8.0}},
       "rope_parameters: logits_scaling is 8.0, only 1 is done here"},
      {model::Family::llama, "rope_scaling", {{"alibi", true}}, "rope_scaling: alibi is true"},
      {model::Family::llama,
       "quantization_config",
       {{"bits", 4}},
       "quantization_config is {\"bits\":4}"},
      {model::Family::llama, "sliding_window", 4096, "sliding_window is 4096"},
      {model::Family::llama, "attention_bias", true, "attention_bias and mlp_bias differ"},
      {model::Family::llama, "logits_scaling", 8.0, "logits_scaling is 8.0, only 1 is done here"},
      {model::Family::llama, "per_layer_config", {{"0", {{"hidden_size", 4}}}}, "per_layer_config"},
      {model::Family::gpt2, "auto_map", {{"AutoModel", "own.Model"}}, "auto_map"},
      {model::Family::gpt2, "pruned_heads", {{"1", {0}}}, "pruned_heads"},
      {model::Family::gpt2, "is_encoder_decoder", true, "is_encoder_decoder"},
  };
  for (const Case& one : cases) {
    const std::string text = test::refusal(ExitCode::checkpoint, [&] {
      (void)read_foreign_config(changed(one.family, one.key, one.value), "hf/config.json");
    });
    EXPECT_THAT(text, AllOf(HasSubstr(one.says), HasSubstr("hf/config.json"))) << one.key;
  }
  for (const char* text : {"", "{", "[]", "7"}) {
    test::refusal(ExitCode::checkpoint, [&] { (void)read_foreign_config(text, "config.json"); });
  }
}

TEST(ExchangeConfig, DeepNestingIsRefused) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  test::expect_error(ExitCode::checkpoint, {"config.json", "nested too deep"}, [&] {
    (void)read_foreign_config(R"({"model_type":"gpt2","x":)" + deep + "}", "config.json");
  });
}

TEST(ExchangeConfig, ReadsBothSpellingsOfTheRotaryBase) {
  const json newer = {{"rope_theta", 7000.0}, {"rope_type", "default"}};

  EXPECT_EQ(spec_of(changed(model::Family::llama, "rope_theta", 5000.0)).rope.theta, 5000);
  EXPECT_EQ(spec_of(changed(model::Family::llama, "rope_parameters", newer)).rope.theta, 7000);
  EXPECT_EQ(spec_of(changed(model::Family::llama, "rope_scaling", nullptr)).rope.theta, 10000);
}

TEST(ExchangeConfig, ScaledAnglesComeBack) {
  ModelSpec spec = small(model::Family::llama);
  spec.rope = {.theta = 500, .scaling = model::RopeScaling::linear, .factor = 2.5};
  EXPECT_EQ(spec_of(config_json(spec, DType::f32, {})).rope, spec.rope);
  spec.rope = {.scaling = model::RopeScaling::llama3,
               .factor = 8,
               .original_context = 12,
               .low_factor = 2,
               .high_factor = 5};
  EXPECT_EQ(spec_of(config_json(spec, DType::f32, {})).rope, spec.rope);
  spec.rope = {.scaling = model::RopeScaling::yarn,
               .factor = 4,
               .original_context = 12,
               .beta_fast = 16,
               .beta_slow = 2,
               .attention_factor = 1.25};
  EXPECT_EQ(spec_of(config_json(spec, DType::f32, {})).rope, spec.rope);
}

TEST(ExchangeConfig, OtherModelsOfLlamasKind) {
  const ModelSpec mistral = spec_of(R"({"model_type": "mistral", "sliding_window": null})");
  const ModelSpec qwen = spec_of(R"({"model_type": "qwen2", "sliding_window": 4096})");

  EXPECT_EQ(model::parameter_count(mistral), 7'241'732'096);  // Mistral 7B v0.1
  EXPECT_EQ(mistral.context, 131072);
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_FALSE(qwen.bias);
  EXPECT_EQ(qwen.bos_token, -1);
  const ModelSpec qwen3 = spec_of(R"({"model_type": "qwen3", "hidden_size": 1024,
      "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
      "intermediate_size": 3072, "tie_word_embeddings": true})");
  EXPECT_EQ(model::parameter_count(qwen3), 596'049'920);  // Qwen3 0.6B
  ModelSpec small_qwen = small(model::Family::llama);
  small_qwen.qkv_bias = true;
  const std::string written = config_json(small_qwen, DType::f32, {});
  EXPECT_THAT(written, HasSubstr(R"("model_type": "qwen2")"));
  EXPECT_TRUE(spec_of(written).qkv_bias);
  ModelSpec normed = small(model::Family::llama);
  normed.qk_norm = model::QkNorm::head;
  normed.own_head_width = 16;
  const ModelSpec again = spec_of(config_json(normed, DType::f32, {}));
  EXPECT_EQ(again.qk_norm, model::QkNorm::head);
  EXPECT_EQ(again.head_width(), 16);
}

TEST(ExchangeConfig, Olmo2NormalizesOutputsAndTheWidthOfQueriesAndKeys) {
  const ModelSpec olmo = spec_of(R"({"model_type": "olmo2", "vocab_size": 100352})");
  EXPECT_EQ(model::parameter_count(olmo), 7'298'617'344);  // OLMo 2 7B
  EXPECT_EQ(olmo.norm_place, model::NormPlace::post_sublayer);
  EXPECT_EQ(olmo.qk_norm, model::QkNorm::width);
  ModelSpec spec = small(model::Family::llama);
  spec.norm_place = model::NormPlace::post_sublayer;
  spec.qk_norm = model::QkNorm::width;
  EXPECT_NO_THROW(require_counterpart(spec));
  const std::string written = config_json(spec, DType::f32, {});
  EXPECT_THAT(written, HasSubstr(R"("model_type": "olmo2")"));
  EXPECT_EQ(spec_of(written).qk_norm, model::QkNorm::width);

  spec.qk_norm = model::QkNorm::head;
  spec.scores.window = 4;
  EXPECT_THAT(export_refusal(spec),
              AllOf(HasSubstr("no counterpart as Olmo2ForCausalLM"),
                    HasSubstr("model.qk_norm must be width with norm_place post_sublayer"),
                    HasSubstr("model.window must be 0 with norm_place post_sublayer")));
  spec = small(model::Family::llama);
  spec.qk_norm = model::QkNorm::width;
  EXPECT_THAT(export_refusal(spec), HasSubstr("model.qk_norm must be none or head"));
}

TEST(ExchangeConfig, Phi3TurnsAPartOfEachHead) {
  const ModelSpec phi3 = spec_of(R"({"model_type": "phi3"})");
  EXPECT_EQ(model::parameter_count(phi3), 3'821'079'552);  // Phi-3 mini
  EXPECT_EQ(phi3.norm_eps, 1e-5);
  EXPECT_EQ(phi3.rope.fraction, 1);
  for (const char* text :
       {R"({"model_type": "phi3", "partial_rotary_factor": 0.75})",
        R"({"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.75}})"}) {
    EXPECT_EQ(spec_of(text).rope.fraction, 0.75);
  }
  ModelSpec spec = small(model::Family::llama);
  spec.own_head_width = 8;
  spec.rope.fraction = 0.5;
  spec.dropout = 0.25;
  const std::string written = config_json(spec, DType::f32, {});
  EXPECT_NO_THROW(require_counterpart(spec));
  EXPECT_THAT(written, HasSubstr(R"("model_type": "phi3")"));
  EXPECT_EQ(spec_of(written).rope, spec.rope);
  EXPECT_EQ(spec_of(written).head_width(), 8);
  EXPECT_EQ(spec_of(written).dropout, 0.25);

  spec.rope.scaling = model::RopeScaling::linear;
  spec.bias = true;
  spec.qk_norm = model::QkNorm::head;
  EXPECT_THAT(export_refusal(spec),
              AllOf(HasSubstr("no counterpart as Phi3ForCausalLM"),
                    HasSubstr("model.rope_scaling must be none with rotary_fraction"),
                    HasSubstr("model.bias and qkv_bias must be false with rotary_fraction"),
                    HasSubstr("model.qk_norm must be none with rotary_fraction")));
}

TEST(ExchangeConfig, Phi3ThatIsNotDoneHereIsRefused) {
  const std::vector<std::pair<json, const char*>> cases = {
      {{{"attention_bias", true}}, "attention_bias is true, only false"},
      {{{"mlp_bias", true}}, "attention_bias and mlp_bias differ"},
      {{{"attention_bias", true}, {"mlp_bias", true}}, "attention_bias is true, only false"},
      {{{"resid_pdrop", 0.1}}, "embd_pdrop 0, resid_pdrop 0.1, attention_dropout 0"},
      {{{"partial_rotary_factor", 1.5}}, "partial_rotary_factor is 1.5"},
      {{{"partial_rotary_factor", 0.01}}, "partial_rotary_factor is 0.01"},
      {{{"partial_rotary_factor", 0.33}}, "partial_rotary_factor is 0.33"},
      {{{"rope_scaling", {{"type", "longrope"}, {"long_factor", {1.0}}}}}, "type longrope"},
      {{{"rope_scaling", {{"type", "su"}}}}, "type su"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}, "the rope of Phi-3 has type"},
  };
  for (const auto& [keys, says] : cases) {
    json config = {{"model_type", "phi3"}};
    config.update(keys);
    EXPECT_THAT(test::refusal(ExitCode::checkpoint,
                              [&] { (void)read_foreign_config(config.dump(), "c.json"); }),
                HasSubstr(says));
  }
}

TEST(ExchangeConfig, WindowsAreRead) {
  const auto windows = [](const std::string& text) {
    const ModelSpec spec = spec_of(text);
    std::vector<Dim> of_layers;
    for (Dim layer = 0; layer < 4; ++layer) of_layers.push_back(spec.scores.window_of(layer));
    return of_layers;
  };
  const std::string layers = R"("num_hidden_layers": 4, )";
  const auto with = [&](const std::string& keys) { return windows("{" + layers + keys + "}"); };
  EXPECT_EQ(with(R"("model_type": "mistral")"), (std::vector<Dim>{4096, 4096, 4096, 4096}));
  EXPECT_EQ(with(R"("model_type": "mistral", "sliding_window": null)"), std::vector<Dim>(4, 0));
  EXPECT_EQ(with(R"("model_type": "mistral", "max_position_embeddings": 4096)"),
            std::vector<Dim>(4, 0));  // hides nothing
  EXPECT_EQ(with(R"("model_type": "phi3", "sliding_window": 2047)"), std::vector<Dim>(4, 2047));
  EXPECT_EQ(with(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 99,
                    "max_window_layers": 3)"),
            (std::vector<Dim>{0, 0, 0, 99}));
  EXPECT_EQ(with(R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": 99,
                    "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
                                    "sliding_attention"])"),
            (std::vector<Dim>{99, 99, 0, 99}));
  EXPECT_EQ(with(R"("model_type": "gemma2", "sliding_window": 8)"), (std::vector<Dim>{8, 0, 8, 0}));
  EXPECT_THAT(test::refusal(ExitCode::checkpoint,
                            [&] {
                              with(R"("model_type": "qwen3", "use_sliding_window": true,
                         "sliding_window": 9, "layer_types": ["sliding_attention",
                         "sliding_attention", "full_attention", "full_attention"])");
                            }),
              HasSubstr("layer_types has a pattern that is not done here"));
}

TEST(ExchangeConfig, GemmaAndGptNeox) {
  const ModelSpec gemma2 = spec_of(R"({"model_type": "gemma2"})");
  EXPECT_EQ(model::parameter_count(gemma2), 2'614'341'888);  // Gemma 2 2B
  EXPECT_EQ(gemma2.scores, (model::AttentionSpec{4096, 2, 0, 0, 50}));
  EXPECT_EQ(gemma2.logit_softcap, 30);
  EXPECT_EQ(spec_of(config_json(gemma2, DType::f32, {{}, {1}})).scores, gemma2.scores);
  const ModelSpec gemma3 = spec_of(R"({"model_type": "gemma3_text", "hidden_size": 1152,
      "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1,
      "vocab_size": 262144, "sliding_window": 512, "rope_scaling": {"rope_type": "linear",
      "factor": 8.0}, "query_pre_attn_scalar": 144})");
  EXPECT_EQ(model::parameter_count(gemma3), 999'885'952);  // Gemma 3 1B
  EXPECT_EQ(gemma3.rope.factor, 8);
  EXPECT_EQ(gemma3.rope.theta, 1e6);
  EXPECT_EQ(gemma3.rope_local_theta, 1e4);
  EXPECT_DOUBLE_EQ(gemma3.scores.scale, 1.0 / 12);
  EXPECT_EQ(gemma3.scores.full_every, 6);
  const ModelSpec pythia = spec_of(R"({"model_type": "gpt_neox", "hidden_size": 768,
      "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
      "vocab_size": 50304})");
  EXPECT_EQ(model::parameter_count(pythia), 162'322'944);  // Pythia 160M
  EXPECT_TRUE(pythia.parallel_block);
  EXPECT_EQ(pythia.rope.fraction, 0.25);
}

TEST(ExchangeConfig, GemmaAndGptNeoxThatAreNotDoneHereAreRefused) {
  const std::vector<std::pair<json, const char*>> cases = {
      {{{"model_type", "gemma2"}, {"hidden_activation", "relu"}}, "hidden_activation is relu"},
      {{{"model_type", "gemma2"}, {"attention_bias", true}}, "attention_bias is true"},
      {{{"model_type", "gemma2"}, {"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar is 0"},
      {{{"model_type", "gemma3_text"}, {"use_bidirectional_attention", true}},
       "use_bidirectional_attention is true"},
      {{{"model_type", "gemma3_text"}, {"attn_logit_softcapping", 50.0}},
       "attn_logit_softcapping is not used by transformers' Gemma 3"},
      {{{"model_type", "gemma3_text"},
        {"rope_parameters",
         {{"full_attention", {{"rope_type", "default"}}},
          {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}}},
       "rope_parameters.sliding_attention has another type"},
      {{{"model_type", "gpt_neox"}, {"rotary_pct", 0.01}}, "rotary_pct is 0.01"},
      {{{"model_type", "gpt_neox"}, {"hidden_act", "silu"}}, "hidden_act is silu"},
      {{{"model_type", "gpt_neox"}, {"attention_bias", false}}, "attention_bias is false"},
      {{{"model_type", "gpt_neox"}, {"num_attention_heads", 7}}, "no multiple of"},
  };
  for (const auto& [config, says] : cases) {
    const std::string text = config.dump();
    EXPECT_THAT(
        test::refusal(ExitCode::checkpoint, [&] { (void)read_foreign_config(text, "c.json"); }),
        HasSubstr(says));
  }
}

TEST(ExchangeConfig, DefaultsAreThoseOfTransformers) {
  const ModelSpec gpt2 = spec_of(R"({"model_type": "gpt2"})");
  const ModelSpec llama = spec_of(R"({"model_type": "llama"})");

  EXPECT_EQ(model::parameter_count(gpt2), 124'439'808);     // GPT-2 small
  EXPECT_EQ(model::parameter_count(llama), 6'738'415'616);  // Llama 7B
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(gpt2.bos_token, 50256);
  EXPECT_THAT(gpt2.eos_tokens, ElementsAre(50256));
  EXPECT_EQ(llama.bos_token, 1);
  EXPECT_THAT(llama.eos_tokens, ElementsAre(2));
}

std::string import_refusal(const std::string& text) {
  return test::refusal(ExitCode::checkpoint, [&] { (void)read_foreign_config(text, "c.json"); });
}

TEST(ExchangeConfig, Gpt2HasTwoNamesForItsSizes) {
  const json other_names = {{"num_attention_heads", 2},
                            {"hidden_size", 16},
                            {"num_hidden_layers", 3},
                            {"max_position_embeddings", 5}};
  json config = json::parse(with_keys(model::Family::gpt2, other_names));
  for (const char* key : {"n_head", "n_embd", "n_layer", "n_positions"}) config.erase(key);

  const ModelSpec spec = spec_of(config.dump());

  EXPECT_EQ(spec.heads, 2);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.width, 16);
  EXPECT_EQ(spec.layers, 3);
  EXPECT_EQ(spec.context, 5);
  EXPECT_EQ(spec_of(with_keys(model::Family::gpt2, {{"num_attention_heads", 4}})).heads, 4);
  EXPECT_THAT(
      import_refusal(with_keys(model::Family::gpt2, other_names)),
      AllOf(HasSubstr("n_head is 4 and num_attention_heads, its other name, is 2"),
            HasSubstr("n_embd is 8"), HasSubstr("n_layer is 2"), HasSubstr("n_positions is 6")));
}

TEST(ExchangeConfig, DropoutsThatOneProbabilityStandsForAreTaken) {
  const auto drops = [](double embedding, double residual, double probabilities) {
    return with_keys(
        model::Family::gpt2,
        {{"embd_pdrop", embedding}, {"resid_pdrop", residual}, {"attn_pdrop", probabilities}});
  };

  const ModelSpec all = spec_of(drops(0.25, 0.25, 0.25));
  const ModelSpec without_attention = spec_of(drops(0.25, 0.25, 0));
  const ModelSpec none = spec_of(drops(0, 0, 0));

  EXPECT_EQ(all.dropout, 0.25);
  EXPECT_EQ(all.attention, model::AttentionPath::reference);  // which alone drops probabilities
  EXPECT_EQ(without_attention.dropout, 0.25);
  EXPECT_EQ(without_attention.attention, model::AttentionPath::automatic);
  EXPECT_EQ(none.dropout, 0);
  EXPECT_EQ(none.attention, model::AttentionPath::automatic);
  for (const ModelSpec& spec : {all, without_attention, none}) {
    const ModelSpec again = spec_of(config_json(spec, DType::f32, {}));
    EXPECT_EQ(again.dropout, spec.dropout);
    EXPECT_EQ(again.attention, spec.attention);
  }
}

TEST(ExchangeConfig, OtherDropoutsAreRefusedByNameOrGivenByTheCaller) {
  const std::vector<std::pair<std::string, const char*>> odd = {
      {with_keys(model::Family::gpt2, {{"embd_pdrop", 0.1}}),
       "embd_pdrop 0.1, resid_pdrop 0, attn_pdrop 0"},
      {with_keys(model::Family::gpt2, {{"resid_pdrop", 0.5}}),
       "embd_pdrop 0, resid_pdrop 0.5, attn_pdrop 0"},
      {with_keys(model::Family::gpt2, {{"attn_pdrop", 0.5}}),
       "embd_pdrop 0, resid_pdrop 0, attn_pdrop 0.5"},
      {with_keys(model::Family::llama, {{"attention_dropout", 0.5}}), "attention_dropout 0.5"}};
  for (const auto& [text, says] : odd) {
    EXPECT_THAT(import_refusal(text), AllOf(HasSubstr(says), HasSubstr("--dropout")));

    const ModelSpec given =
        read_foreign_config(text, "", {.dropout = 0.25, .ignored_keys = {}}).spec;

    EXPECT_EQ(given.dropout, 0.25);
    EXPECT_EQ(given.attention, model::AttentionPath::automatic);
  }
}

TEST(ExchangeConfig, BeginAndEndOfTextAreKeptApart) {
  const auto again = [](model::Family family, const json& bos, const json& eos) {
    const ModelSpec spec =
        spec_of(with_keys(family, {{"bos_token_id", bos}, {"eos_token_id", eos}}));
    const json back = json::parse(config_json(spec, DType::f32, {spec.bos_token, spec.eos_tokens}));
    return std::pair(back["bos_token_id"], back["eos_token_id"]);
  };
  for (const model::Family family : {model::Family::gpt2, model::Family::llama}) {
    EXPECT_EQ(again(family, 0, 1), std::pair(json(0), json(1)));
    EXPECT_EQ(again(family, nullptr, 7), std::pair(json(nullptr), json(7)));
    EXPECT_EQ(again(family, 3, {4, 5}), std::pair(json(3), json({4, 5})));
    EXPECT_EQ(again(family, 3, nullptr), std::pair(json(3), json(nullptr)));
  }
  const json ids = json::parse(generation_config_json({0, {1, 2}}, {1, 2}));
  EXPECT_EQ(ids["bos_token_id"], 0);
  EXPECT_EQ(ids["eos_token_id"], json({1, 2}));
  const ForeignConfig outside = read_foreign_config(
      with_keys(model::Family::gpt2, {{"bos_token_id", 20}, {"eos_token_id", 19}}), "");
  EXPECT_EQ(outside.spec.bos_token, -1);
  EXPECT_THAT(outside.spec.eos_tokens, ElementsAre(19));
  EXPECT_THAT(outside.warnings, ElementsAre(HasSubstr("bos_token_id [20] is not used")));
  EXPECT_THAT(import_refusal(with_keys(model::Family::gpt2, {{"eos_token_id", "x"}})),
              HasSubstr("eos_token_id: expected an id"));
}

TEST(ExchangeConfig, EveryKeyOfTransformersIsInATable) {
  // to_dict() of GPT2Config and LlamaConfig of transformers 4.57 and 5.23, and older names.
  const json common = {{"_name_or_path", "x"},
                       {"architectures", {"GPT2LMHeadModel"}},
                       {"dtype", "float32"},
                       {"torch_dtype", "float16"},
                       {"return_dict", true},
                       {"output_hidden_states", false},
                       {"chunk_size_feed_forward", 0},
                       {"is_encoder_decoder", false},
                       {"id2label", {{"0", "L"}}},
                       {"label2id", {{"L", 0}}},
                       {"problem_type", nullptr},
                       {"use_cache", true},
                       {"pad_token_id", 3},
                       {"transformers_version", "5.23.0"},
                       {"output_attentions", false},
                       {"torchscript", false},
                       {"use_bfloat16", false},
                       {"pruned_heads", json::object()},
                       {"tie_encoder_decoder", false},
                       {"is_decoder", false},
                       {"add_cross_attention", false},
                       {"cross_attention_hidden_size", nullptr},
                       {"max_length", 20},
                       {"do_sample", true},
                       {"temperature", 0.7},
                       {"top_k", 50},
                       {"num_beams", 1},
                       {"tokenizer_class", nullptr},
                       {"task_specific_params", {{"text-generation", {{"max_length", 50}}}}}};
  json gpt2 = {{"summary_type", "cls_index"},
               {"summary_use_proj", true},
               {"summary_activation", nullptr},
               {"summary_proj_to_labels", true},
               {"summary_first_dropout", 0.1},
               {"scale_attn_weights", true},
               {"scale_attn_by_inverse_layer_idx", false},
               {"reorder_and_upcast_attn", true},
               {"n_ctx", 6},
               {"n_special", 0},
               {"predict_special_tokens", true}};
  json llama = {{"pretraining_tp", 2}, {"rope_scaling", nullptr}, {"attention_dropout", 0.0}};
  gpt2.update(common);
  llama.update(common);

  EXPECT_THAT(read_foreign_config(with_keys(model::Family::gpt2, gpt2), "").warnings,
              ::testing::IsEmpty());
  EXPECT_THAT(read_foreign_config(with_keys(model::Family::llama, llama), "").warnings,
              ::testing::IsEmpty());
}

}  // namespace
}  // namespace hyperslab::interop
