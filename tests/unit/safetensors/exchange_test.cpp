// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/exchange.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "exchange_config.hpp"
#include "exchange_names.hpp"
#include "files.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "support/tensors.hpp"

namespace hyperslab::train {
namespace {

using model::ModelSpec;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

ModelSpec small(const std::string& family) {
  ModelSpec spec = model::preset(family);
  spec.layers = 2;
  spec.width = 8;
  spec.heads = 4;
  spec.kv_heads = family == "gpt2" ? 4 : 2;
  spec.ffn_width = 12;
  spec.vocabulary = 20;
  spec.context = 6;
  spec.embedding_scale = 1;
  return spec;
}

Config config_of(const ModelSpec& spec) {
  Config config;
  config.model = spec;
  return config;
}

/// A value that says which tensor and element it is.
float value_of(const std::string& name, Dim element) {
  return static_cast<float>(std::hash<std::string>()(name) % 4096) +
         static_cast<float>(element) / 1024;
}

/// A checkpoint of our tensors of a model.
void write_checkpoint(const ModelSpec& spec, const std::string& directory) {
  io::CheckpointMeta meta;
  meta.step = 7;
  io::CheckpointParts checkpoint(directory, meta, 1 << 20);
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    for (const NamedShape& ours : tensor.ours) {
      Tensor values(Device::cpu, DType::f32, ours.shape);
      for (Dim i = 0; i < ours.shape.numel(); ++i) {
        values.view().data<float>()[i] = value_of(ours.name, i);
      }
      const Shape origin = ours.shape.rank() == 1 ? Shape{0} : Shape{0, 0};
      const io::Slab slab = {ours.name, ours.shape, origin, ours.shape, values.view()};
      checkpoint.add(std::span(&slab, 1));
    }
  }
  checkpoint.commit();
}

void export_small(const ModelSpec& spec, const std::string& directory, const std::string& output,
                  std::uint64_t shard_bytes = io::ModelFolder::kShardBytes) {
  const io::CheckpointReader reader(directory);
  ExportOptions options;
  options.output = output;
  options.shard_bytes = shard_bytes;
  export_huggingface(config_of(spec), reader, options);
}

std::vector<double> tensor_in(const std::string& folder, const std::string& name,
                              const Shape& shape) {
  Tensor out(Device::cpu, DType::f32, shape);
  io::SafetensorsReader(folder).read(name, out.view());
  return test::to_doubles(out.view());
}

TEST(Exchange, TransposesByHand) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  std::vector<float> y(6);

  transpose(x.data(), 2, 3, y.data());

  EXPECT_THAT(y, ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(Exchange, TransposesOverTiles) {
  constexpr Dim rows = 67;
  constexpr Dim columns = 33;
  std::vector<float> x(rows * columns);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);

  transpose(x.data(), rows, columns, y.data());

  for (Dim i = 0; i < rows; ++i) {
    for (Dim j = 0; j < columns; ++j) {
      ASSERT_EQ(y[static_cast<std::size_t>(j * rows + i)], static_cast<float>(i * columns + j));
    }
  }
}

TEST(Exchange, NamesCoverEveryParameter) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool tied : {false, true}) {
      ModelSpec spec = small(family);
      spec.tie_embeddings = tied;
      Dim theirs = 0;
      Dim ours = 0;
      for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
        theirs += tensor.numel();
        for (const NamedShape& part : tensor.ours) ours += part.shape.numel();
      }
      EXPECT_EQ(theirs, model::parameter_count(spec)) << family << tied;
      EXPECT_EQ(ours, theirs) << family << tied;
    }
  }
}

TEST(Exchange, Gpt2HasQueryKeyAndValueSideBySideAndInputsFirst) {
  const test::TempFolder temp;
  const ModelSpec spec = small("gpt2");
  write_checkpoint(spec, temp.path() + "/c");

  export_small(spec, temp.path() + "/c", temp.path() + "/hf");

  const auto weight = tensor_in(temp.path() + "/hf", "transformer.h.1.attn.c_attn.weight", {8, 24});
  const auto bias = tensor_in(temp.path() + "/hf", "transformer.h.1.attn.c_attn.bias", {24});
  const auto down = tensor_in(temp.path() + "/hf", "transformer.h.0.mlp.c_proj.weight", {12, 8});
  const char* parts[] = {"query", "key", "value"};
  for (Dim part = 0; part < 3; ++part) {
    const std::string name = fmt::format("model/blocks.1.attention.{}", parts[part]);
    for (Dim out = 0; out < 8; ++out) {
      EXPECT_EQ(bias[static_cast<std::size_t>(8 * part + out)], value_of(name + ".bias", out));
      for (Dim in = 0; in < 8; ++in) {
        EXPECT_EQ(weight[static_cast<std::size_t>(24 * in + 8 * part + out)],
                  value_of(name + ".weight", 8 * out + in));
      }
    }
  }
  EXPECT_EQ(down[8 * 11 + 3], value_of("model/blocks.0.mlp.down.weight", 12 * 3 + 11));
  const io::SafetensorsReader reader(temp.path() + "/hf");
  EXPECT_FALSE(reader.tensors().contains("lm_head.weight"));
  EXPECT_EQ(reader.tensors().size(), 2 + 2 * 12 + 2);
}

TEST(Exchange, LlamaKeepsItsMatrices) {
  const test::TempFolder temp;
  const ModelSpec spec = small("llama");
  write_checkpoint(spec, temp.path() + "/c");

  export_small(spec, temp.path() + "/c", temp.path() + "/hf");

  const std::string folder = temp.path() + "/hf";
  const auto key = tensor_in(folder, "model.layers.0.self_attn.k_proj.weight", {4, 8});
  const auto gate = tensor_in(folder, "model.layers.1.mlp.gate_proj.weight", {12, 8});
  const auto norm = tensor_in(folder, "model.layers.1.post_attention_layernorm.weight", {8});
  const auto head = tensor_in(folder, "lm_head.weight", {20, 8});
  EXPECT_EQ(key[9], value_of("model/blocks.0.attention.key.weight", 9));
  EXPECT_EQ(gate[95], value_of("model/blocks.1.mlp.gate.weight", 95));
  EXPECT_EQ(norm[7], value_of("model/blocks.1.norm2.weight", 7));
  EXPECT_EQ(head[159], value_of("model/head.weight", 159));
  const io::SafetensorsReader reader(folder);
  EXPECT_EQ(reader.tensors().size(), 1 + 2 * 9 + 2);
}

io::CheckpointMeta meta_of(const std::string& deck) {
  io::CheckpointMeta meta;
  meta.deck = deck;
  return meta;
}

/// Exports, imports and compares every tensor of ours.
void expect_round_trip(const ModelSpec& spec, std::uint64_t shard_bytes) {
  const test::TempFolder temp;
  const std::string folder = temp.path() + "/hf";
  write_checkpoint(spec, temp.path() + "/c");
  export_small(spec, temp.path() + "/c", folder, shard_bytes);
  ModelSpec described = huggingface_model(folder);
  described.init_std = spec.init_std;
  EXPECT_EQ(described, spec);

  import_huggingface(folder, described, temp.path() + "/i", meta_of("the deck"));

  const io::CheckpointReader reader(temp.path() + "/i");
  EXPECT_THAT(reader.verify(), ::testing::IsEmpty());
  EXPECT_EQ(reader.meta().step, 0);
  EXPECT_EQ(reader.meta().adam_step, 0);
  EXPECT_EQ(reader.meta().deck, "the deck");
  std::size_t count = 0;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    for (const NamedShape& ours : tensor.ours) {
      const std::string name = ours.name.substr(ours.name.find('/') + 1);
      const Shape origin = ours.shape.rank() == 1 ? Shape{0} : Shape{0, 0};
      for (const char* prefix : {"model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
        Tensor out(Device::cpu, DType::f32, ours.shape);
        const io::SlabTarget target = {prefix + name, ours.shape, origin, ours.shape, out.view()};
        reader.read(std::span(&target, 1));
        const bool moment = prefix[0] == 'o';
        for (Dim i = 0; i < ours.shape.numel(); ++i) {
          ASSERT_EQ(out.view().data<float>()[i], moment ? 0.0F : value_of(ours.name, i)) << name;
        }
        ++count;
      }
    }
  }
  EXPECT_EQ(reader.tensors().size(), count);
}

TEST(Exchange, RoundTripsOfBothFamiliesTiedAndUntiedInOneFileAndInSeveral) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool tied : {false, true}) {
      ModelSpec spec = small(family);
      spec.tie_embeddings = tied;
      spec.norm_eps = 1e-6;
      spec.rope_theta = 500000;
      if (std::string(family) == "gpt2") spec.rope_theta = model::preset("gpt2").rope_theta;
      expect_round_trip(spec, io::ModelFolder::kShardBytes);
      expect_round_trip(spec, 1000);
    }
  }
  ModelSpec biased = small("llama");
  biased.bias = true;
  expect_round_trip(biased, 1000);
}

std::string export_refusal(const ModelSpec& spec) {
  return test::refusal(ExitCode::usage, [&] { require_counterpart(spec); });
}

TEST(Exchange, ChoicesWithoutACounterpartAreAllNamed) {
  ModelSpec gpt2 = small("gpt2");
  ModelSpec llama = small("llama");
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
  llama.norm = ops::NormKind::layernorm;
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

ModelSpec spec_of(const std::string& text) { return read_foreign_config(text, "").spec; }

/// A config.json as transformers writes it, with one key changed.
std::string changed(const std::string& family, const std::string& key, const json& value) {
  json config = json::parse(config_json(small(family), DType::f32, {}));
  config[key] = value;
  return config.dump();
}

TEST(Exchange, ForeignSettingsThatChangeResultsAreRefused) {
  struct Case {
    const char* family;
    const char* key;
    json value;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"gpt2", "model_type", "mistral", "model_type is mistral"},
      {"gpt2", "activation_function", "relu", "activation_function is relu"},
      {"gpt2", "scale_attn_weights", false, "scale_attn_weights"},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx"},
      {"gpt2", "add_cross_attention", true, "add_cross_attention"},
      {"gpt2", "n_layer", 0, "n_layer: wanted a whole number from 1"},
      {"gpt2", "n_head", -4, "n_head: wanted"},
      {"gpt2", "n_embd", "wide", "n_embd: wanted"},
      {"gpt2", "layer_norm_epsilon", -1.0, "layer_norm_epsilon: wanted"},
      {"gpt2", "tie_word_embeddings", 1, "tie_word_embeddings: wanted true or false"},
      {"llama", "hidden_act", "gelu", "hidden_act is gelu"},
      {"llama", "head_dim", 16, "head_dim 16"},
      {"llama", "mlp_bias", true, "attention_bias and mlp_bias differ"},
      {"llama", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}, "type llama3"},
      {"llama", "rope_scaling", {{"type", "linear"}}, "type linear"},
      {"llama", "rope_parameters", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"llama", "rope_parameters", {{"full_attention", {{"rope_theta", 7.0}}}}, "full_attention"},
      {"llama", "rope_scaling", {{"factor", 8.0}}, "rope_scaling has factor"},
      {"llama", "quantization_config", {{"bits", 4}}, "quantization_config is {\"bits\":4}"},
      {"llama", "sliding_window", 4096, "sliding_window is 4096"},
      {"llama", "attention_bias", true, "attention_bias and mlp_bias differ"},
      {"llama", "logits_scaling", 8.0, "logits_scaling is 8.0, only 1 is done here"},
      {"llama", "per_layer_config", {{"0", {{"hidden_size", 4}}}}, "per_layer_config"},
      {"gpt2", "auto_map", {{"AutoModel", "own.Model"}}, "auto_map"},
      {"gpt2", "pruned_heads", {{"1", {0}}}, "pruned_heads"},
      {"gpt2", "is_encoder_decoder", true, "is_encoder_decoder"},
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

TEST(Exchange, ReadsBothSpellingsOfTheRotaryBase) {
  const json newer = {{"rope_theta", 7000.0}, {"rope_type", "default"}};

  EXPECT_EQ(spec_of(changed("llama", "rope_theta", 5000.0)).rope_theta, 5000);
  EXPECT_EQ(spec_of(changed("llama", "rope_parameters", newer)).rope_theta, 7000);
  EXPECT_EQ(spec_of(changed("llama", "rope_scaling", nullptr)).rope_theta, 10000);
}

TEST(Exchange, DefaultsAreThoseOfTransformers) {
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

/// The config.json of a small model with these keys changed or added.
std::string with_keys(const std::string& family, const json& keys) {
  json config = json::parse(config_json(small(family), DType::f32, {}));
  config.update(keys);
  return config.dump();
}

std::string import_refusal(const std::string& text) {
  return test::refusal(ExitCode::checkpoint, [&] { (void)read_foreign_config(text, "c.json"); });
}

TEST(Exchange, Gpt2HasTwoNamesForItsSizes) {
  const json other_names = {{"num_attention_heads", 2},
                            {"hidden_size", 16},
                            {"num_hidden_layers", 3},
                            {"max_position_embeddings", 5}};
  json config = json::parse(with_keys("gpt2", other_names));
  for (const char* key : {"n_head", "n_embd", "n_layer", "n_positions"}) config.erase(key);

  const ModelSpec spec = spec_of(config.dump());

  EXPECT_EQ(spec.heads, 2);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.width, 16);
  EXPECT_EQ(spec.layers, 3);
  EXPECT_EQ(spec.context, 5);
  EXPECT_EQ(spec_of(with_keys("gpt2", {{"num_attention_heads", 4}})).heads, 4);
  EXPECT_THAT(
      import_refusal(with_keys("gpt2", other_names)),
      AllOf(HasSubstr("n_head is 4 and num_attention_heads, its other name, is 2"),
            HasSubstr("n_embd is 8"), HasSubstr("n_layer is 2"), HasSubstr("n_positions is 6")));
}

TEST(Exchange, DropoutsThatOneProbabilityStandsForAreTaken) {
  const auto drops = [](double embedding, double residual, double probabilities) {
    return with_keys(
        "gpt2",
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

TEST(Exchange, OtherDropoutsAreRefusedByNameOrGivenByTheCaller) {
  const std::vector<std::pair<std::string, const char*>> odd = {
      {with_keys("gpt2", {{"embd_pdrop", 0.1}}), "embd_pdrop 0.1, resid_pdrop 0, attn_pdrop 0"},
      {with_keys("gpt2", {{"resid_pdrop", 0.5}}), "embd_pdrop 0, resid_pdrop 0.5, attn_pdrop 0"},
      {with_keys("gpt2", {{"attn_pdrop", 0.5}}), "embd_pdrop 0, resid_pdrop 0, attn_pdrop 0.5"},
      {with_keys("llama", {{"attention_dropout", 0.5}}), "attention_dropout 0.5"}};
  for (const auto& [text, says] : odd) {
    EXPECT_THAT(import_refusal(text), AllOf(HasSubstr(says), HasSubstr("--dropout")));

    const ModelSpec given = read_foreign_config(text, "", 0.25).spec;

    EXPECT_EQ(given.dropout, 0.25);
    EXPECT_EQ(given.attention, model::AttentionPath::automatic);
  }
}

TEST(Exchange, BeginAndEndOfTextAreKeptApart) {
  const auto again = [](const char* family, const json& bos, const json& eos) {
    const ModelSpec spec =
        spec_of(with_keys(family, {{"bos_token_id", bos}, {"eos_token_id", eos}}));
    const json back = json::parse(config_json(spec, DType::f32, {spec.bos_token, spec.eos_tokens}));
    return std::pair(back["bos_token_id"], back["eos_token_id"]);
  };
  for (const char* family : {"gpt2", "llama"}) {
    EXPECT_EQ(again(family, 0, 1), std::pair(json(0), json(1)));
    EXPECT_EQ(again(family, nullptr, 7), std::pair(json(nullptr), json(7)));
    EXPECT_EQ(again(family, 3, {4, 5}), std::pair(json(3), json({4, 5})));
    EXPECT_EQ(again(family, 3, nullptr), std::pair(json(3), json(nullptr)));
  }
  const json ids = json::parse(generation_config_json({0, {1, 2}}));
  EXPECT_EQ(ids["bos_token_id"], 0);
  EXPECT_EQ(ids["eos_token_id"], json({1, 2}));
  const ForeignConfig outside =
      read_foreign_config(with_keys("gpt2", {{"bos_token_id", 20}, {"eos_token_id", 19}}), "");
  EXPECT_EQ(outside.spec.bos_token, -1);
  EXPECT_THAT(outside.spec.eos_tokens, ElementsAre(19));
  EXPECT_THAT(outside.warnings, ElementsAre(HasSubstr("bos_token_id [20] is not used")));
  EXPECT_THAT(import_refusal(with_keys("gpt2", {{"eos_token_id", "x"}})),
              HasSubstr("eos_token_id: wanted an id"));
}

TEST(Exchange, ExportsNameTheDecksIdsBeforeThoseOfTheVocabulary) {
  const test::TempFolder temp;
  ModelSpec spec = small("gpt2");
  spec.vocabulary = 257;
  write_checkpoint(spec, temp.path() + "/c");
  const io::CheckpointReader reader(temp.path() + "/c");
  const auto exported = [&](const ModelSpec& model, const char* name) {
    Config config = config_of(model);
    config.data.vocabulary = "bytes";
    ExportOptions options;
    options.output = temp.path() + "/" + name;
    export_huggingface(config, reader, options);
    const json written = json::parse(test::get_file(options.output + "/config.json"));
    const json tokens = json::parse(test::get_file(options.output + "/tokenizer_config.json"));
    return json({written["bos_token_id"], written["eos_token_id"], tokens.value("eos_token", "none")});
  };
  ModelSpec named = spec;
  named.bos_token = 65;
  named.eos_tokens = {66, 256};

  EXPECT_EQ(exported(spec, "a"), json({256, 256, "<|endoftext|>"}));
  EXPECT_EQ(exported(named, "b"), json({65, {66, 256}, "none"}));
}

TEST(Exchange, EveryKeyOfTransformersIsInATable) {
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

  EXPECT_THAT(read_foreign_config(with_keys("gpt2", gpt2), "").warnings, ::testing::IsEmpty());
  EXPECT_THAT(read_foreign_config(with_keys("llama", llama), "").warnings, ::testing::IsEmpty());
}

TEST(Exchange, KeysInNoTableAreNamed) {
  const ForeignConfig found =
      read_foreign_config(with_keys("llama", {{"my_key", 1}, {"other", {2}}}), "hf/config.json");

  EXPECT_THAT(found.warnings, ElementsAre(AllOf(HasSubstr("hf/config.json"),
                                                HasSubstr("my_key, other are not known"))));
}

/// A folder with the small GPT-2's config.json and these tensors of zeros.
std::string folder_with(const test::TempFolder& temp, const ModelSpec& spec,
                        const std::map<std::string, Shape>& tensors) {
  std::vector<io::SafetensorsSpec> specs;
  for (const auto& [name, shape] : tensors) specs.push_back({name, shape});
  io::ModelFolder folder(temp.path() + "/hf");
  folder.write_text("config.json", config_json(spec, DType::f32, {}));
  folder.write_tensors(specs, DType::f32,
                       [](std::size_t, View out) { std::memset(out.raw(), 0, out.bytes()); });
  folder.commit();
  return temp.path() + "/hf";
}

/// The same with values that `fill` puts into the tensor of a name.
std::string folder_filled(const test::TempFolder& temp, const ModelSpec& spec,
                          const std::map<std::string, Shape>& tensors,
                          const std::function<void(const std::string&, View)>& fill) {
  std::vector<io::SafetensorsSpec> specs;
  for (const auto& [name, shape] : tensors) specs.push_back({name, shape});
  io::ModelFolder folder(temp.path() + "/hf");
  folder.write_text("config.json", config_json(spec, DType::f32, {}));
  folder.write_tensors(specs, DType::f32, [&](std::size_t index, View out) {
    std::memset(out.raw(), 0, out.bytes());
    fill(specs[index].name, out);
  });
  folder.commit();
  return temp.path() + "/hf";
}

std::map<std::string, Shape> tensors_of(const ModelSpec& spec) {
  std::map<std::string, Shape> tensors;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    tensors.emplace(tensor.name, tensor.shape);
  }
  return tensors;
}

TEST(Exchange, NamesWithoutTheFirstWordAndOldBuffersAreFine) {
  const test::TempFolder temp;
  const ModelSpec spec = small("gpt2");
  std::map<std::string, Shape> tensors = {{"h.0.attn.bias", {1, 1, 6, 6}},
                                          {"lm_head.weight", {20, 8}}};
  for (const auto& [name, shape] : tensors_of(spec)) {
    tensors.emplace(name.substr(name.find('.') + 1), shape);
  }

  import_huggingface(folder_with(temp, spec, tensors), spec, temp.path() + "/i", {});

  EXPECT_EQ(io::list_checkpoints(temp.path() + "/i"), std::vector<std::int64_t>{0});
}

TEST(Exchange, MissingUnknownAndMisshapenTensorsAreNamedAndNothingIsLeft) {
  const ModelSpec spec = small("gpt2");
  const auto refused = [&](const std::map<std::string, Shape>& tensors) {
    const test::TempFolder temp;
    const std::string folder = folder_with(temp, spec, tensors);
    const std::string text = test::refusal(
        ExitCode::checkpoint, [&] { import_huggingface(folder, spec, temp.path() + "/i", {}); });
    EXPECT_FALSE(std::filesystem::exists(temp.path() + "/i/step_00000000"));
    EXPECT_FALSE(std::filesystem::exists(temp.path() + "/i/step_00000000.tmp"));
    return text;
  };
  std::map<std::string, Shape> renamed = tensors_of(spec);
  renamed.erase("transformer.h.1.ln_2.bias");
  renamed.emplace("transformer.h.1.adapter", Shape{3});
  std::map<std::string, Shape> misshapen = tensors_of(spec);
  misshapen["transformer.h.1.mlp.c_fc.weight"] = {12, 8};

  EXPECT_THAT(refused(renamed), AllOf(HasSubstr("missing 1 (transformer.h.1.ln_2.bias)"),
                                      HasSubstr("unknown 1 (transformer.h.1.adapter)")));
  EXPECT_THAT(refused(misshapen), AllOf(HasSubstr("transformer.h.1.mlp.c_fc.weight"),
                                        HasSubstr("has shape (12, 8), wanted (8, 12)")));
}

TEST(Exchange, AHeadThatDiffersFromTheTableUntiesAModel) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool bare : {false, true}) {
      ModelSpec spec = small(family);
      spec.tie_embeddings = true;
      std::map<std::string, Shape> tensors = {{"lm_head.weight", {20, 8}}};
      for (const auto& [name, shape] : tensors_of(spec)) {
        tensors.emplace(bare ? name.substr(name.find('.') + 1) : name, shape);
      }
      const auto tied_with_head = [&](float last) {
        const test::TempFolder temp;
        const auto fill = [&](const std::string& name, View out) {
          if (name == "lm_head.weight") out.data<float>()[159] = last;
        };
        return huggingface_model(folder_filled(temp, spec, tensors, fill)).tie_embeddings;
      };

      EXPECT_TRUE(tied_with_head(0)) << family << bare;
      EXPECT_FALSE(tied_with_head(1e-7F)) << family << bare;
    }
  }
}

TEST(Exchange, AnUntiedModelKeepsItsHeadAndNeedsOne) {
  ModelSpec spec = small("gpt2");
  spec.tie_embeddings = false;
  const test::TempFolder temp;
  const std::string folder = folder_with(temp, spec, tensors_of(spec));
  EXPECT_FALSE(huggingface_model(folder).tie_embeddings);  // equal heads stay two
  const test::TempFolder other;
  std::map<std::string, Shape> tensors = tensors_of(spec);
  tensors.erase("lm_head.weight");
  const std::string headless = folder_with(other, spec, tensors);

  const std::string text = test::refusal(ExitCode::checkpoint, [&] {
    import_huggingface(headless, huggingface_model(headless), other.path() + "/i", {});
  });

  EXPECT_THAT(text, HasSubstr("missing 1 (lm_head.weight)"));
}

TEST(Exchange, ValuesThatAreNotFiniteAreRefusedAndNothingIsLeft) {
  const ModelSpec spec = small("gpt2");
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const test::TempFolder temp;
    const auto fill = [&](const std::string& name, View out) {
      if (name != "transformer.h.1.mlp.c_fc.weight") return;
      out.data<float>()[7] = out.data<float>()[9] = odd;
    };
    const std::string folder = folder_filled(temp, spec, tensors_of(spec), fill);

    const std::string text = test::refusal(ExitCode::checkpoint, [&] {
      import_huggingface(folder, spec, temp.path() + "/deep/i", {});
    });

    EXPECT_THAT(text, AllOf(HasSubstr("model.safetensors"),
                            HasSubstr("tensor transformer.h.1.mlp.c_fc.weight holds 2 of 96"),
                            HasSubstr("at element 7")));
    EXPECT_FALSE(std::filesystem::exists(temp.path() + "/deep"));
  }
}

TEST(Exchange, AConfigThatIsNoFileIsRefusedAtOnce) {
  const test::TempFolder temp;
  const std::string path = temp.path() + "/config.json";
  const auto refused = [&] {
    return test::refusal(ExitCode::checkpoint, [&] { (void)huggingface_model(temp.path()); });
  };
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refused(), AllOf(HasSubstr(path), HasSubstr("wanted a regular file")));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  EXPECT_THAT(refused(), HasSubstr("wanted a regular file"));
  std::filesystem::remove(path);
  test::put_file(path, "");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // a hole
  EXPECT_THAT(refused(), HasSubstr("it has more than"));
}

TEST(Exchange, ADirectoryWithCheckpointsIsNotImportedInto) {
  const test::TempFolder temp;
  const ModelSpec spec = small("gpt2");
  const std::string folder = folder_with(temp, spec, tensors_of(spec));
  write_checkpoint(spec, temp.path() + "/c");

  EXPECT_THAT(test::refusal(ExitCode::storage,
                            [&] { import_huggingface(folder, spec, temp.path() + "/c", {}); }),
              HasSubstr("checkpoints already"));
  EXPECT_EQ(io::CheckpointReader(temp.path() + "/c").meta().step, 7);
}

TEST(Exchange, TokenizerFilesGoAlong) {
  const test::TempFolder temp;
  const ModelSpec spec = small("gpt2");
  write_checkpoint(spec, temp.path() + "/c");
  const std::string vocabulary = temp.path() + "/vocabulary";
  std::filesystem::create_directory(vocabulary);
  const io::CheckpointReader reader(temp.path() + "/c");
  ExportOptions options;
  options.vocabulary = vocabulary;
  options.output = temp.path() + "/none";
  EXPECT_THAT(
      test::refusal(ExitCode::data, [&] { export_huggingface(config_of(spec), reader, options); }),
      HasSubstr("no tokenizer files"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  test::put_file(vocabulary + "/vocab.json", "{\"a\": 0}");
  test::put_file(vocabulary + "/merges.txt", "#version: 0.2\n");
  options.output = temp.path() + "/hf";

  export_huggingface(config_of(spec), reader, options);

  EXPECT_EQ(test::get_file(options.output + "/vocab.json"), "{\"a\": 0}");
  EXPECT_EQ(test::get_file(options.output + "/merges.txt"), "#version: 0.2\n");
  EXPECT_THAT(test::get_file(options.output + "/tokenizer_config.json"),
              HasSubstr("GPT2Tokenizer"));
}

}  // namespace
}  // namespace hyperslab::train
