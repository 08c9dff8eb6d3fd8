// SPDX-License-Identifier: Apache-2.0
#include "exchange_experts.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "interop/exchange_files.hpp"
#include "interop/exchange_models.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using model::QkNorm;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

/// Three experts in both layers, of which a token takes two.
ModelSpec mixtral() {
  ModelSpec spec = small(model::Family::llama);
  spec.experts.count = 3;
  spec.experts.width = spec.ffn_width;
  spec.experts.balance_weight = 0.25;
  return spec;
}

ModelSpec olmoe() {
  ModelSpec spec = mixtral();
  spec.qk_norm = QkNorm::width;
  spec.experts.normalize = false;
  return spec;
}

/// Experts in layers 3 and 5 of six, with another width than the network of the others.
ModelSpec qwen3_moe() {
  ModelSpec spec = mixtral();
  spec.qk_norm = QkNorm::head;
  spec.own_head_width = 4;
  spec.layers = 6;
  spec.experts.width = 10;
  spec.experts.active = 3;
  spec.experts.every = 2;
  spec.experts.first_dense = 2;
  return spec;
}

std::vector<std::pair<std::string, ModelSpec>> all_classes() {
  return {{"mixtral", mixtral()}, {"qwen3_moe", qwen3_moe()}, {"olmoe", olmoe()}};
}

std::string refused_export(const ModelSpec& spec) {
  return test::refusal(ExitCode::usage, [&] { require_counterpart(spec); });
}

/// The model of a config.json with these keys.
ModelSpec read_spec(const std::string& type, const json& keys = json::object()) {
  json config = {{"model_type", type}};
  config.update(keys);
  return read_foreign_config(config.dump(), "c.json").spec;
}

std::string refused_import(const std::string& type, const json& keys) {
  return test::refusal(ExitCode::checkpoint, [&] { (void)read_spec(type, keys); });
}

json config_of(const ModelSpec& spec) { return json::parse(config_json(spec, DType::f32, {})); }

TEST(ExchangeExperts, NamesCoverEveryParameter) {
  for (const auto& [type, spec] : all_classes()) {
    Dim theirs = 0;
    Dim ours = 0;
    for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
      theirs += tensor.numel();
      for (const NamedShape& part : tensor.ours) ours += part.shape.numel();
    }
    EXPECT_EQ(theirs, model::parameter_count(spec)) << type;
    EXPECT_EQ(ours, theirs) << type;
  }
}

TEST(ExchangeExperts, NamesAreThoseOfTheHub) {
  const std::map<std::string, Shape> of_mixtral = tensors_of(mixtral());
  const std::map<std::string, Shape> of_qwen = tensors_of(qwen3_moe());
  const std::map<std::string, Shape> of_olmoe = tensors_of(olmoe());
  const auto shape_in = [](const std::map<std::string, Shape>& tensors, const std::string& name) {
    const auto found = tensors.find("model.layers." + name + ".weight");
    return found == tensors.end() ? Shape() : found->second;
  };

  EXPECT_EQ(shape_in(of_mixtral, "1.block_sparse_moe.gate"), (Shape{3, 8}));
  EXPECT_EQ(shape_in(of_mixtral, "0.block_sparse_moe.experts.2.w1"), (Shape{12, 8}));
  EXPECT_EQ(shape_in(of_mixtral, "0.block_sparse_moe.experts.0.w2"), (Shape{8, 12}));
  EXPECT_EQ(shape_in(of_mixtral, "0.block_sparse_moe.experts.0.w3"), (Shape{12, 8}));
  EXPECT_EQ(of_mixtral.size(), 3 + 2 * (6 + 1 + 3 * 3));
  EXPECT_EQ(shape_in(of_qwen, "3.mlp.gate"), (Shape{3, 8}));
  EXPECT_EQ(shape_in(of_qwen, "5.mlp.experts.2.gate_proj"), (Shape{10, 8}));
  EXPECT_EQ(shape_in(of_qwen, "5.mlp.experts.1.up_proj"), (Shape{10, 8}));
  EXPECT_EQ(shape_in(of_qwen, "3.mlp.experts.0.down_proj"), (Shape{8, 10}));
  EXPECT_EQ(shape_in(of_qwen, "1.mlp.gate_proj"), (Shape{12, 8}));
  EXPECT_EQ(shape_in(of_qwen, "4.self_attn.k_norm"), (Shape{4}));
  EXPECT_THAT(of_qwen, Not(Contains(Key("model.layers.1.mlp.gate.weight"))));
  EXPECT_EQ(shape_in(of_olmoe, "1.mlp.experts.2.up_proj"), (Shape{12, 8}));
  EXPECT_EQ(shape_in(of_olmoe, "0.self_attn.q_norm"), (Shape{8}));
  EXPECT_EQ(shape_in(of_olmoe, "0.self_attn.k_norm"), (Shape{4}));
}

TEST(ExchangeExperts, MatricesOfMixtralAreNumberedGateDownUp) {
  const test::TempFolder temp;
  write_checkpoint(mixtral(), temp.path() + "/c");

  export_small(mixtral(), temp.path() + "/c", temp.path() + "/hf");

  const std::string begin = "model.layers.1.block_sparse_moe.experts.2.";
  const std::string ours = "model/blocks.1.experts.2.";
  EXPECT_EQ(tensor_in(temp.path() + "/hf", begin + "w1.weight", {12, 8})[7],
            value_of(ours + "gate.weight", 7));
  EXPECT_EQ(tensor_in(temp.path() + "/hf", begin + "w2.weight", {8, 12})[7],
            value_of(ours + "down.weight", 7));
  EXPECT_EQ(tensor_in(temp.path() + "/hf", begin + "w3.weight", {12, 8})[7],
            value_of(ours + "up.weight", 7));
}

TEST(ExchangeExperts, RoundTrips) {
  for (auto [type, spec] : all_classes()) {
    expect_round_trip(spec, io::ModelFolder::kShardBytes);
    expect_round_trip(spec, 1000);
    if (type == "olmoe") continue;
    spec.scores.window = 4;
    spec.tie_embeddings = true;
    expect_round_trip(spec, 1000);
  }
}

/// A folder with the experts of each layer in two tensors, of which every value differs.
std::string fused_folder(const test::TempFolder& temp, const ModelSpec& spec) {
  std::map<std::string, Shape> tensors;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    const bool of_experts = tensor.ours.front().name.find(".experts.") != std::string::npos;
    if (!of_experts) tensors.emplace(tensor.name, tensor.shape);
  }
  const Dim F = spec.experts.width;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    if (!spec.experts.at(layer)) continue;
    const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
    tensors.emplace(mlp + "gate.weight", Shape{3, 8});
    tensors.emplace(mlp + "experts.gate_up_proj", Shape{3, 2 * F, 8});
    tensors.emplace(mlp + "experts.down_proj", Shape{3, 8, F});
  }
  return folder_filled(temp, spec, tensors, [](const std::string& name, View out) {
    for (Dim i = 0; i < out.numel(); ++i) out.data<float>()[i] = value_of(name, i);
  });
}

TEST(ExchangeExperts, ExpertsOfALayerInTwoTensorsComeIn) {
  for (const auto& [type, spec] : all_classes()) {
    const test::TempFolder temp;
    const std::string folder = fused_folder(temp, spec);

    import_huggingface(folder, huggingface_model(folder), temp.path() + "/i", meta_of(""));

    const io::CheckpointReader reader(temp.path() + "/i");
    const auto first_of = [&](const std::string& name, const Shape& shape) {
      Tensor out(Device::cpu, DType::f32, shape);
      const io::SlabTarget target = {"model/blocks." + name + ".weight", shape,
                                     Hyperslab::whole(shape), out.view()};
      reader.read(std::span(&target, 1));
      return out.view().data<float>()[0];
    };
    const Dim layer = spec.layers - 1;
    const Dim F = spec.experts.width;
    const std::string theirs = fmt::format("model.layers.{}.mlp.experts.", layer);
    for (Dim expert = 0; expert < 3; ++expert) {
      const std::string ours = fmt::format("{}.experts.{}.", layer, expert);
      EXPECT_EQ(first_of(ours + "gate", {F, 8}),
                value_of(theirs + "gate_up_proj", expert * 2 * F * 8));
      EXPECT_EQ(first_of(ours + "up", {F, 8}),
                value_of(theirs + "gate_up_proj", (expert * 2 + 1) * F * 8));
      EXPECT_EQ(first_of(ours + "down", {8, F}), value_of(theirs + "down_proj", expert * F * 8));
    }
    EXPECT_EQ(first_of(fmt::format("{}.experts.router", layer), {3, 8}),
              value_of(fmt::format("model.layers.{}.mlp.gate.weight", layer), 0));
  }
}

TEST(ExchangeExperts, DefaultsAreThoseOfTransformers) {
  const ModelSpec of_mixtral = read_spec("mixtral");
  EXPECT_EQ(model::parameter_count(of_mixtral), 46'702'792'704);  // Mixtral 8x7B
  EXPECT_EQ(of_mixtral.rope.theta, 1e6);
  EXPECT_EQ(of_mixtral.scores.window, 0);
  EXPECT_TRUE(of_mixtral.experts.normalize);
  EXPECT_EQ(of_mixtral.experts.active, 2);
  const ModelSpec qwen = read_spec("qwen3_moe", {{"num_hidden_layers", 48}, {"head_dim", 128}});
  EXPECT_EQ(model::parameter_count(qwen), 30'532'122'624);  // Qwen3 30B-A3B
  EXPECT_EQ(qwen.rope.theta, 1e4);
  EXPECT_EQ(qwen.experts.active, 8);
  EXPECT_FALSE(qwen.experts.normalize);
  EXPECT_EQ(qwen.experts.balance_weight, 0.001);
  const ModelSpec of_olmoe = read_spec("olmoe", {{"intermediate_size", 1024}});
  EXPECT_EQ(model::parameter_count(of_olmoe), 6'919'161'856);  // OLMoE 1B-7B
  EXPECT_EQ(of_olmoe.experts.balance_weight, 0.01);
  EXPECT_FALSE(of_olmoe.experts.normalize);
  EXPECT_EQ(read_spec("qwen3_moe").head_width(), 64);
}

TEST(ExchangeExperts, KeysOfRoutersComeBack) {
  ModelSpec spec = qwen3_moe();
  const json qwen = config_of(spec);
  EXPECT_EQ(qwen["architectures"], json({"Qwen3MoeForCausalLM"}));
  EXPECT_EQ(qwen["intermediate_size"], 12);
  EXPECT_EQ(qwen["moe_intermediate_size"], 10);
  EXPECT_EQ(qwen["num_experts"], 3);
  EXPECT_EQ(qwen["num_experts_per_tok"], 3);
  EXPECT_EQ(qwen["decoder_sparse_step"], 2);
  EXPECT_EQ(qwen["mlp_only_layers"], json({0, 1}));
  EXPECT_EQ(qwen["norm_topk_prob"], true);
  EXPECT_EQ(qwen["router_aux_loss_coef"], 0.25);
  spec = mixtral();
  spec.experts.balance = nn::Balance::none;
  spec.experts.width = 7;
  const json of_mixtral = config_of(spec);
  EXPECT_EQ(of_mixtral["architectures"], json({"MixtralForCausalLM"}));
  EXPECT_EQ(of_mixtral["num_local_experts"], 3);
  EXPECT_EQ(of_mixtral["intermediate_size"], 7);
  EXPECT_EQ(of_mixtral["router_aux_loss_coef"], 0);
  EXPECT_FALSE(of_mixtral.contains("norm_topk_prob"));
  const json of_olmoe = config_of(olmoe());
  EXPECT_EQ(of_olmoe["architectures"], json({"OlmoeForCausalLM"}));
  EXPECT_EQ(of_olmoe["norm_topk_prob"], false);
  EXPECT_TRUE(of_olmoe["clip_qkv"].is_null());
  const json other_name = {{"num_local_experts", 12}};
  EXPECT_EQ(read_spec("olmoe", other_name).experts.count, 12);
}

TEST(ExchangeExperts, LayersWithoutExpertsAreTheFirstOnes) {
  const auto layers = [](const json& list, Dim every) {
    return read_spec("qwen3_moe", {{"num_hidden_layers", 6},
                                   {"mlp_only_layers", list},
                                   {"decoder_sparse_step", every}})
        .experts;
  };
  EXPECT_EQ(layers(json::array(), 1).first_dense, 0);
  EXPECT_EQ(layers(nullptr, 3).every, 3);
  EXPECT_EQ(layers({1, 0, 2}, 1).first_dense, 3);
  EXPECT_EQ(layers({0, 2, 4}, 2).first_dense, 0);  // which have none anyway
  EXPECT_EQ(layers({1}, 2).first_dense, 2);
  EXPECT_EQ(layers({0, 1, 3, 3, 99}, 2).first_dense, 4);
  for (const json& list : {json({1}), json({0, 5}), json({5}), json({"0"}), json(2), json({-1})}) {
    EXPECT_THAT(refused_import("qwen3_moe", {{"num_hidden_layers", 6}, {"mlp_only_layers", list}}),
                HasSubstr("mlp_only_layers"));
  }
}

TEST(ExchangeExperts, WindowsAreOfAllLayers) {
  EXPECT_EQ(read_spec("mixtral", {{"sliding_window", 99}}).scores, (model::AttentionSpec{99}));
  EXPECT_EQ(read_spec("mixtral", {{"sliding_window", 1 << 20}}).scores, model::AttentionSpec());
  const json unused = {{"sliding_window", 99}, {"use_sliding_window", false}};
  EXPECT_EQ(read_spec("qwen3_moe", unused).scores, model::AttentionSpec());
  const json used = {{"use_sliding_window", true}, {"max_window_layers", 3}};
  EXPECT_EQ(read_spec("qwen3_moe", used).scores, (model::AttentionSpec{4096}));
  EXPECT_THAT(refused_import("mixtral", {{"layer_types", {"full_attention"}}}),
              HasSubstr("layer_types is"));
}

TEST(ExchangeExperts, SettingsThatAreNotDoneHereAreRefused) {
  struct Case {
    const char* type;
    json keys;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"mixtral", {{"router_jitter_noise", 0.1}}, "router_jitter_noise is 0.1, only 0 is done"},
      {"mixtral", {{"num_experts_per_tok", 9}}, "num_experts_per_tok is 9, more than the 8"},
      {"mixtral", {{"num_local_experts", 0}}, "num_local_experts: expected a whole number from 1"},
      {"mixtral", {{"num_local_experts", 65536}}, "65536 experts in each of 32 layers are more"},
      {"mixtral", {{"num_experts", 4}, {"num_local_experts", 5}}, "its other name, is 5"},
      {"mixtral", {{"attention_bias", true}}, "attention_bias is true, only false"},
      {"mixtral", {{"norm_topk_prob", false}}, "norm_topk_prob is not known here"},
      {"mixtral", {{"hidden_act", "gelu"}}, "hidden_act is gelu"},
      {"mixtral", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5"},
      {"qwen3_moe", {{"attention_bias", true}, {"mlp_bias", true}}, "attention_bias is true"},
      {"qwen3_moe", {{"shared_expert_intermediate_size", 8}}, "shared_expert_intermediate_size"},
      {"qwen3_moe", {{"decoder_sparse_step", 0}}, "decoder_sparse_step: expected"},
      {"qwen3_moe", {{"router_aux_loss_coef", -1}}, "router_aux_loss_coef: expected"},
      {"olmoe", {{"clip_qkv", 8.0}}, "clip_qkv is 8.0"},
      {"olmoe", {{"sliding_window", 8}}, "sliding_window is 8"},
      {"olmoe", {{"head_dim", 64}}, "head_dim is 64, only hidden_size / num_attention_heads"},
      {"olmoe", {{"attention_bias", true}}, "attention_bias"},
      {"llama", {{"num_experts", 8}}, "num_experts is not known here"},
      {"qwen2_moe", {}, "model_type is qwen2_moe, whose shared expert has a gate"},
  };
  for (const Case& one : cases) {
    const json keys = one.keys.is_null() ? json::object() : one.keys;
    EXPECT_THAT(refused_import(one.type, keys), HasSubstr(one.says));
  }
  for (const char* type : {"deepseek_v2", "deepseek_v3", "gpt_oss", "glm4_moe", "granitemoe",
                           "phimoe", "jamba", "qwen3_next", "minimax", "dbrx", "olmo3"}) {
    EXPECT_THAT(refused_import(type, json::object()),
                AllOf(HasSubstr(fmt::format("model_type is {};", type)),
                      HasSubstr("mixtral, qwen3_moe, olmoe")));
  }
}

TEST(ExchangeExperts, ChoicesOfRoutersWithoutACounterpartAreAllNamed) {
  for (const auto& [type, spec] : all_classes()) EXPECT_NO_THROW(require_counterpart(spec)) << type;
  ModelSpec spec = mixtral();
  spec.experts.shared = 1;
  spec.experts.score = ops::RouterScore::sigmoid;
  spec.experts.scale = 2;
  spec.experts.groups = 3;
  spec.experts.bias_rate = 0.001;
  spec.experts.normalize = false;
  spec.experts.first_dense = 1;
  spec.activation = ops::Activation::gelu;
  spec.norm_place = model::NormPlace::post_sublayer;
  spec.qkv_bias = true;
  EXPECT_THAT(
      refused_export(spec),
      AllOf(HasSubstr("no counterpart as MixtralForCausalLM"),
            HasSubstr("experts.shared must be 0"), HasSubstr("experts.scale must be 1"),
            HasSubstr("experts.score must be softmax"), HasSubstr("experts.groups must be 1"),
            HasSubstr("experts.bias_rate must be 0"),

            HasSubstr("experts.normalize must be true without qk_norm"),
            HasSubstr("experts.every and first_dense must be 1 and 0 without qk_norm head"),
            HasSubstr("model.activation must be swiglu"), HasSubstr("model.norm_place must be pre"),
            HasSubstr("model.bias and qkv_bias must be false with experts")));
  spec = small(model::Family::gpt2);
  spec.experts.count = 2;
  EXPECT_THAT(refused_export(spec), AllOf(HasSubstr("no counterpart as GPT2LMHeadModel"),
                                          HasSubstr("experts.count must be 0")));
}

TEST(ExchangeExperts, ChoicesOfAttentionWithoutACounterpartAreAllNamed) {
  ModelSpec spec = olmoe();
  spec.own_head_width = 4;
  spec.scores = {4, 2, 1, 0.5, 30, true};
  spec.norm = ops::NormKind::layernorm;
  spec.parallel_block = true;
  spec.rope.fraction = 0.5;
  spec.position = model::Position::none;
  spec.rope_local_theta = 3;
  EXPECT_THAT(
      refused_export(spec),
      AllOf(HasSubstr("no counterpart as OlmoeForCausalLM"),
            HasSubstr("model.head_width must be model.width / model.heads with qk_norm width"),
            HasSubstr("model.window must be 0 with qk_norm width"),
            HasSubstr("model.window_full_every and window_first_layer must be 0 with experts"),
            HasSubstr("model.attention_scale must be 0"), HasSubstr("model.attention_softcap"),
            HasSubstr("model.attention_sinks must be false"), HasSubstr("model.norm must be"),
            HasSubstr("model.parallel_block must be false"), HasSubstr("model.rotary_fraction"),
            HasSubstr("model.position must be rope"), HasSubstr("model.rope_local_theta")));
}

}  // namespace
}  // namespace hyperslab::interop
