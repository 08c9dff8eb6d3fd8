// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/interop/exchange.hpp"

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
#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "interop/exchange_files.hpp"
#include "interop/exchange_models.hpp"
#include "io/safetensors/files.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  for (const model::Family family : {model::Family::gpt2, model::Family::llama}) {
    for (const bool tied : {false, true}) {
      ModelSpec spec = small(family);
      spec.tie_embeddings = tied;
      Dim theirs = 0;
      Dim ours = 0;
      for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
        theirs += tensor.numel();
        for (const NamedShape& part : tensor.ours) ours += part.shape.numel();
      }
      EXPECT_EQ(theirs, model::parameter_count(spec)) << name_of(family) << tied;
      EXPECT_EQ(ours, theirs) << name_of(family) << tied;
    }
  }
}

TEST(Exchange, Gpt2HasQueryKeyAndValueSideBySideAndInputsFirst) {
  const test::TempFolder temp;
  const ModelSpec spec = small(model::Family::gpt2);
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
  const ModelSpec spec = small(model::Family::llama);
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

TEST(Exchange, RoundTripsOfBothFamiliesTiedAndUntiedInOneFileAndInSeveral) {
  for (const model::Family family : {model::Family::gpt2, model::Family::llama}) {
    for (const bool tied : {false, true}) {
      ModelSpec spec = small(family);
      spec.tie_embeddings = tied;
      spec.norm_eps = 1e-6;
      spec.rope.theta = 500000;
      if (family == model::Family::gpt2) spec.rope.theta = model::preset(family).rope.theta;
      expect_round_trip(spec, io::ModelFolder::kShardBytes);
      expect_round_trip(spec, 1000);
    }
  }
  ModelSpec biased = small(model::Family::llama);
  biased.bias = true;
  expect_round_trip(biased, 1000);
}

/// A width of four times its base's: the final norm gives a quarter, and its tied table stays.
TEST(Exchange, ALogitScaleGoesIntoTheFinalNorm) {
  for (const model::Family family : {model::Family::gpt2, model::Family::llama}) {
    const test::TempFolder temp;
    ModelSpec spec = small(family);
    spec.tie_embeddings = true;
    spec.mup_base_width = 2;
    write_checkpoint(spec, temp.path() + "/c");

    export_small(spec, temp.path() + "/c", temp.path() + "/hf");

    const std::string folder = temp.path() + "/hf";
    const bool gpt2 = family == model::Family::gpt2;
    for (const char* part : {"weight", "bias"}) {
      if (!gpt2 && part[0] == 'b') continue;
      const std::string name = gpt2 ? "transformer.ln_f." : "model.norm.";
      const auto norm = tensor_in(folder, name + part, {8});
      EXPECT_EQ(norm[5], value_of(std::string("model/final_norm.") + part, 5) / 4);
    }
    const auto table =
        tensor_in(folder, gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight", {20, 8});
    EXPECT_EQ(table[11], value_of("model/embedding.token.weight", 11));
    EXPECT_EQ(huggingface_model(folder).mup_base_width, 0);
  }
}

TEST(Exchange, NormsOfGemmaAreScaledBeforeTheirOffset) {
  ModelSpec spec = small(model::Family::llama);
  spec.norm_place = model::NormPlace::sandwich;
  spec.activation = ops::Activation::geglu_tanh;
  spec.embedding_scale = std::sqrt(8.0);
  spec.tie_embeddings = true;
  spec.scores.scale = 0.5;
  spec.mup_base_width = 2;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    const bool last = tensor.name == "model.norm.weight";
    EXPECT_EQ(tensor.scale, last ? 0.25F : 1.0F) << tensor.name;
    EXPECT_EQ(tensor.offset, tensor.name.ends_with("norm.weight") ? 1.0F : 0.0F);
  }
}

ModelSpec small_phi3() {
  ModelSpec spec = small(model::Family::llama);
  spec.own_head_width = 4;
  spec.rope.fraction = 0.5;
  return spec;
}

TEST(Exchange, Phi3HasProjectionsOfOneInputBelowEachOther) {
  expect_round_trip(small_phi3(), 1000);
  const test::TempFolder temp;
  write_checkpoint(small_phi3(), temp.path() + "/c");
  export_small(small_phi3(), temp.path() + "/c", temp.path() + "/hf");

  const auto heads =
      tensor_in(temp.path() + "/hf", "model.layers.1.self_attn.qkv_proj.weight", {32, 8});
  const auto mlp =
      tensor_in(temp.path() + "/hf", "model.layers.1.mlp.gate_up_proj.weight", {24, 8});

  EXPECT_EQ(heads[3], value_of("model/blocks.1.attention.query.weight", 3));
  EXPECT_EQ(heads[16 * 8 + 3], value_of("model/blocks.1.attention.key.weight", 3));
  EXPECT_EQ(heads[24 * 8 + 3], value_of("model/blocks.1.attention.value.weight", 3));
  EXPECT_EQ(mlp[3], value_of("model/blocks.1.mlp.gate.weight", 3));
  EXPECT_EQ(mlp[12 * 8 + 3], value_of("model/blocks.1.mlp.up.weight", 3));
}

TEST(Exchange, Phi3ThatTurnsWholeHeadsIsReadByItsTensors) {
  const test::TempFolder temp;
  write_checkpoint(small_phi3(), temp.path() + "/c");
  export_small(small_phi3(), temp.path() + "/c", temp.path() + "/hf");
  ModelSpec whole = small_phi3();
  whole.rope.fraction = 1;

  import_huggingface(temp.path() + "/hf", whole, temp.path() + "/i", meta_of("the deck"));

  Tensor key(Device::cpu, DType::f32, {8, 8});
  const io::SlabTarget target = {
      "model/blocks.0.attention.key.weight", {8, 8}, Hyperslab::whole({8, 8}), key.view()};
  io::CheckpointReader(temp.path() + "/i").read(std::span(&target, 1));
  EXPECT_EQ(key.view().data<float>()[5], value_of("model/blocks.0.attention.key.weight", 5));
}

TEST(Exchange, ExportsNameTheDecksIdsBeforeThoseOfTheVocabulary) {
  const test::TempFolder temp;
  ModelSpec spec = small(model::Family::gpt2);
  spec.vocabulary = 257;
  write_checkpoint(spec, temp.path() + "/c");
  const io::CheckpointReader reader(temp.path() + "/c");
  const auto exported = [&](const ModelSpec& model, const char* name) {
    ExportOptions options;
    options.vocabulary = "bytes";
    options.output = temp.path() + "/" + name;
    export_huggingface(model, reader, options);
    const json written = json::parse(test::read_file(options.output + "/config.json"));
    const json tokens = json::parse(test::read_file(options.output + "/tokenizer_config.json"));
    return json(
        {written["bos_token_id"], written["eos_token_id"], tokens.value("eos_token", "none")});
  };
  ModelSpec named = spec;
  named.bos_token = 65;
  named.eos_tokens = {66, 256};

  EXPECT_EQ(exported(spec, "a"), json({256, 256, "<|endoftext|>"}));
  EXPECT_EQ(exported(named, "b"), json({65, {66, 256}, "none"}));
}

/// Files of a model whose generation_config.json, config.json and tokenizer_config.json name ends
/// of texts of their own.
TEST(Exchange, ExportsNameTheEndsOfTextsAsTheFilesOfTheVocabularyDo) {
  const test::TempFolder temp;
  ModelSpec spec = small(model::Family::gpt2);
  spec.vocabulary = 257;
  write_checkpoint(spec, temp.path() + "/c");
  const io::CheckpointReader reader(temp.path() + "/c");
  const auto write = [&](const char* name, const json& content) {
    test::write_file(temp.path() + "/v/" + name, content.dump());
  };
  std::filesystem::create_directory(temp.path() + "/v");
  test::write_file(temp.path() + "/v/tokenizer.json", io::byte_tokenizer_json());
  write("tokenizer_config.json", {{"eos_token", "<|endoftext|>"}});
  write("generation_config.json", {{"eos_token_id", {70, 256}}});
  write("config.json", {{"eos_token_id", 70}});
  const auto exported = [&](const std::vector<std::int64_t>& eos, const char* name) {
    ModelSpec model = spec;
    model.eos_tokens = eos;
    ExportOptions options;
    options.vocabulary = temp.path() + "/v";
    options.output = temp.path() + "/" + name;
    export_huggingface(model, reader, options);
    const auto read = [&](const char* file) {
      return json::parse(test::read_file(options.output + "/" + file));
    };
    EXPECT_EQ(read("tokenizer_config.json"), json({{"eos_token", "<|endoftext|>"}}));
    return json(
        {read("config.json")["eos_token_id"], read("generation_config.json")["eos_token_id"]});
  };

  EXPECT_EQ(exported({70}, "as_got"), json({70, {70, 256}}));
  EXPECT_EQ(exported({80}, "changed"), json({80, {70, 256, 80}}));
  EXPECT_EQ(exported({}, "not_named"), json({{256, 70}, {70, 256}}));
}

TEST(Exchange, NamesWithoutTheFirstWordAndOldBuffersAreFine) {
  const test::TempFolder temp;
  const ModelSpec spec = small(model::Family::gpt2);
  std::map<std::string, Shape> tensors = {{"h.0.attn.bias", {1, 1, 6, 6}},
                                          {"lm_head.weight", {20, 8}}};
  for (const auto& [name, shape] : tensors_of(spec)) {
    tensors.emplace(name.substr(name.find('.') + 1), shape);
  }

  import_huggingface(folder_with(temp, spec, tensors), spec, temp.path() + "/i", {});

  EXPECT_EQ(io::list_checkpoints(temp.path() + "/i"), std::vector<std::int64_t>{0});
}

TEST(Exchange, MissingUnknownAndMisshapenTensorsAreNamedAndNothingIsLeft) {
  const ModelSpec spec = small(model::Family::gpt2);
  const auto refused = [&](const std::map<std::string, Shape>& tensors) {
    const test::TempFolder temp;
    const std::string folder = folder_with(temp, spec, tensors);
    std::string text = test::refusal(
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
                                        HasSubstr("has shape (12, 8), expected (8, 12)")));
}

TEST(Exchange, AHeadThatDiffersFromTheTableUntiesAModel) {
  for (const model::Family family : {model::Family::gpt2, model::Family::llama}) {
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

      EXPECT_TRUE(tied_with_head(0)) << name_of(family) << bare;
      EXPECT_FALSE(tied_with_head(1e-7F)) << name_of(family) << bare;
    }
  }
}

TEST(Exchange, AnUntiedModelKeepsItsHeadAndNeedsOne) {
  ModelSpec spec = small(model::Family::gpt2);
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
  const ModelSpec spec = small(model::Family::gpt2);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const test::TempFolder temp;
    const auto fill = [&](const std::string& name, View out) {
      if (name != "transformer.h.1.mlp.c_fc.weight") return;
      out.data<float>()[7] = out.data<float>()[9] = value;
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
  EXPECT_THAT(refused(), AllOf(HasSubstr(path), HasSubstr("expected a regular file")));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  EXPECT_THAT(refused(), HasSubstr("expected a regular file"));
  std::filesystem::remove(path);
  test::write_file(path, "");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // a hole
  EXPECT_THAT(refused(), HasSubstr("it has more than"));
}

TEST(Exchange, ADirectoryWithCheckpointsIsNotImportedInto) {
  const test::TempFolder temp;
  const ModelSpec spec = small(model::Family::gpt2);
  const std::string folder = folder_with(temp, spec, tensors_of(spec));
  write_checkpoint(spec, temp.path() + "/c");

  EXPECT_THAT(test::refusal(ExitCode::storage,
                            [&] { import_huggingface(folder, spec, temp.path() + "/c", {}); }),
              HasSubstr("checkpoints already"));
  EXPECT_EQ(io::CheckpointReader(temp.path() + "/c").meta().step, 7);
}

TEST(Exchange, TokenizerFilesAreCopied) {
  const test::TempFolder temp;
  const ModelSpec spec = small(model::Family::gpt2);
  write_checkpoint(spec, temp.path() + "/c");
  const std::string vocabulary = temp.path() + "/vocabulary";
  std::filesystem::create_directory(vocabulary);
  const io::CheckpointReader reader(temp.path() + "/c");
  ExportOptions options;
  options.vocabulary = vocabulary;
  options.requires_vocabulary = true;
  options.output = temp.path() + "/none";
  EXPECT_THAT(test::refusal(ExitCode::data, [&] { export_huggingface(spec, reader, options); }),
              HasSubstr("no tokenizer files"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  test::write_file(vocabulary + "/vocab.json", "{\"a\": 0}");
  test::write_file(vocabulary + "/merges.txt", "#version: 0.2\n");
  options.output = temp.path() + "/hf";

  export_huggingface(spec, reader, options);

  EXPECT_EQ(test::read_file(options.output + "/vocab.json"), "{\"a\": 0}");
  EXPECT_EQ(test::read_file(options.output + "/merges.txt"), "#version: 0.2\n");
  EXPECT_THAT(test::read_file(options.output + "/tokenizer_config.json"),
              HasSubstr("GPT2Tokenizer"));
}

}  // namespace
}  // namespace hyperslab::interop
