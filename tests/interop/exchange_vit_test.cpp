// SPDX-License-Identifier: Apache-2.0
#include "exchange_vit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "exchange_config.hpp"
#include "exchange_names.hpp"
#include "hyperslab/io/text_file.hpp"
#include "interop/exchange_models.hpp"
#include "preprocessing.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using model::Pooling;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Two layers for images of 8 x 8 pixels, as a deck resolves them.
ModelSpec small_vit(Pooling pooling) {
  ModelSpec spec = small(model::Family::vit);
  spec.kv_heads = spec.heads;
  spec.ffn_width = 16;
  spec.image = {.size = 8, .patch = 4, .channels = 3, .classes = 5, .pooling = pooling};
  spec.vocabulary = spec.image.classes;
  spec.context = spec.image.tokens();
  return spec;
}

Dim parameters_of(const ModelSpec& spec, Library library) {
  Dim count = 0;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec, library)) {
    Dim ours = 0;
    for (const NamedShape& part : tensor.ours) ours += part.shape.numel();
    EXPECT_EQ(ours, tensor.numel()) << tensor.name;
    count += ours;
  }
  return count;
}

std::string refusal_of(const std::string& config) {
  try {
    static_cast<void>(read_foreign_config(config, "config.json"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    return error.what();
  }
  return "";
}

// timm 1.0: sum(p.numel() for p in timm.create_model(NAME).parameters()).
TEST(ExchangeVit, TensorsHoldAsManyParametersAsTimmsModels) {
  const std::pair<const char*, Dim> known[] = {{"vit_tiny_patch16_224", 5717416},
                                               {"vit_small_patch16_224", 22050664},
                                               {"vit_base_patch16_224", 86567656}};
  for (const auto& [name, count] : known) {
    const ModelSpec spec =
        read_foreign_config(json({{"architecture", name}}).dump(), "config.json").spec;
    for (const Library library : {Library::timm, Library::transformers}) {
      EXPECT_EQ(parameters_of(spec, library), count) << name;
    }
  }
}

TEST(ExchangeVit, TimmHasQueryKeyAndValueOneBelowTheOther) {
  for (const ExchangedTensor& tensor :
       exchanged_tensors(small_vit(Pooling::token), Library::timm)) {
    if (tensor.name != "blocks.1.attn.qkv.weight") continue;
    EXPECT_EQ(tensor.shape, Shape({24, 8}));
    EXPECT_FALSE(tensor.transposed);
    ASSERT_EQ(tensor.ours.size(), 3U);
    EXPECT_EQ(tensor.ours[1].name, "model/blocks.1.attention.key.weight");
    EXPECT_EQ(tensor.ours[1].shape, Shape({8, 8}));
    return;
  }
  FAIL() << "there is no blocks.1.attn.qkv.weight";
}

TEST(ExchangeVit, TheMeanOfPatchesIsNormedByFcNorm) {
  std::set<std::string> names;
  for (const auto& tensor : exchanged_tensors(small_vit(Pooling::mean), Library::timm)) {
    names.insert(tensor.name);
  }
  EXPECT_TRUE(names.contains("fc_norm.weight"));
  EXPECT_FALSE(names.contains("norm.weight"));
  EXPECT_FALSE(names.contains("cls_token"));
}

TEST(ExchangeVit, ALogitScaleGoesIntoTheNormBeforeTheHead) {
  ModelSpec spec = small_vit(Pooling::token);
  spec.mup_base_width = 2;  // a quarter
  for (const Library library : {Library::timm, Library::transformers}) {
    std::set<std::string> scaled;
    for (const ExchangedTensor& tensor : exchanged_tensors(spec, library)) {
      if (tensor.scale == 0.25F) scaled.insert(tensor.name);
    }
    const std::string norm = library == Library::timm ? "norm" : "vit.layernorm";
    EXPECT_EQ(scaled, (std::set<std::string>{norm + ".weight", norm + ".bias"}));
  }
}

TEST(ExchangeVit, ConfigurationsComeBack) {
  for (const Pooling pooling : {Pooling::token, Pooling::mean}) {
    const ModelSpec spec = small_vit(pooling);
    EXPECT_EQ(read_foreign_config(timm_config_json(spec, {}), "config.json").spec, spec);
  }
  const ModelSpec spec = small_vit(Pooling::token);
  EXPECT_EQ(read_foreign_config(config_json(spec, DType::f32, {}), "config.json").spec, spec);
}

TEST(ExchangeVit, QueriesKeysAndValuesMayHaveNoBias) {
  ModelSpec spec = small_vit(Pooling::token);
  const Dim with_biases = model::parameter_count(spec);
  spec.unbiased_qkv = true;

  EXPECT_EQ(model::parameter_count(spec), with_biases - 2 * 3 * 8);
  for (const Library library : {Library::timm, Library::transformers}) {
    EXPECT_EQ(parameters_of(spec, library), model::parameter_count(spec));
  }
  EXPECT_EQ(read_foreign_config(timm_config_json(spec, {}), "config.json").spec, spec);
  EXPECT_EQ(read_foreign_config(config_json(spec, DType::f32, {}), "config.json").spec, spec);
}

// timm cuts width x mlp_ratio to a whole number.
TEST(ExchangeVit, RoundingOfTheRatioLosesNoFeature) {
  ModelSpec spec = small_vit(Pooling::token);
  for (const auto& [width, ffn_width] : {std::pair<Dim, Dim>{448, 488}, {112, 1840}, {88, 120}}) {
    spec.width = width;
    spec.ffn_width = ffn_width;
    EXPECT_EQ(read_foreign_config(timm_config_json(spec, {}), "config.json").spec, spec);
  }
}

/// A folder with these files.
class Preprocessing : public test::TempFolder {
 public:
  void write(const std::string& name, const std::string& text) const {
    io::write_text_file(path() + "/" + name, text);
  }
  [[nodiscard]] std::string refusal() const {
    try {
      static_cast<void>(image_preprocessing(path()));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint);
      return error.what();
    }
    return "";
  }
};

image::AugmentConfig some_preprocessing() {
  image::AugmentConfig augment;
  augment.mean = {0.25, 0.5, 0.75};
  augment.deviation = {0.5, 1, 0.125};
  augment.interpolation = image::Interpolation::bicubic;
  return augment;
}

TEST(ExchangeVit, WhatIsDoneToImagesComesBack) {
  const Preprocessing folder;
  image::AugmentConfig augment = some_preprocessing();
  augment.validation_crop = 0.9;
  folder.write("config.json", timm_config_json(small_vit(Pooling::token), augment));
  EXPECT_EQ(image_preprocessing(folder.path()), augment);

  augment.validation_crop = 1;
  folder.write("config.json", json({{"image_size", small_vit(Pooling::token).image.size}}).dump());
  folder.write("preprocessor_config.json", preprocessor_json(small_vit(Pooling::token), augment));
  EXPECT_EQ(image_preprocessing(folder.path()), augment);

  folder.write("preprocessor_config.json", R"({"do_normalize": false, "resample": 2})");
  EXPECT_EQ(image_preprocessing(folder.path()).deviation, (std::array<double, 3>{1, 1, 1}));
}

TEST(ExchangeVit, WithoutAWordOnImagesTheDefaultsStay) {
  const Preprocessing folder;
  folder.write("config.json", "{}");
  EXPECT_EQ(image_preprocessing(folder.path()), image::AugmentConfig());
}

TEST(ExchangeVit, RefusesPreprocessingThatIsNotDone) {
  const Preprocessing folder;
  const auto timm = [&](const std::string& keys) {
    folder.write("config.json", R"({"pretrained_cfg": {)" + keys + "}}");
    return folder.refusal();
  };
  EXPECT_THAT(timm(R"("crop_mode": "squash", "crop_pct": 1.5)"),
              AllOf(HasSubstr("crop_mode is squash"), HasSubstr("crop_pct is 1.5")));
  EXPECT_THAT(timm(R"("interpolation": "lanczos")"), HasSubstr("interpolation is lanczos"));
  EXPECT_THAT(timm(R"("std": [0, 1, 1])"), HasSubstr("std must be above 0"));
  EXPECT_THAT(timm(R"("mean": "grey")"), HasSubstr("mean is \"grey\", expected three numbers"));
  EXPECT_THAT(timm(R"("crop_border": 4)"), HasSubstr("crop_border is not known here"));
  const auto transformers = [&](const std::string& text) {
    folder.write("config.json", "{}");
    folder.write("preprocessor_config.json", text);
    return folder.refusal();
  };
  EXPECT_THAT(transformers(R"({"rescale_factor": 1})"), HasSubstr("rescale_factor is 1"));
  EXPECT_THAT(transformers(R"({"resample": 1})"), HasSubstr("resample must be"));
  EXPECT_THAT(transformers(R"({"do_resize": false})"), HasSubstr("do_resize is false"));
  EXPECT_THAT(transformers(R"({"do_center_crop": true, "crop_size": 224})"),
              HasSubstr("do_center_crop is true"));
  EXPECT_THAT(transformers(R"({"size": {"shortest_edge": 256}})"),
              HasSubstr("the model's images have 224 x 224 pixels"));
  EXPECT_THAT(transformers(R"({"do_invert": true})"),
              HasSubstr("do_invert is not known here and may decide"));
  EXPECT_THAT(transformers("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(transformers(std::string(1000, '[')), HasSubstr("nested too deeply"));
}

TEST(ExchangeVit, RefusesByNameWhatIsNotDone) {
  EXPECT_THAT(refusal_of(R"({"model_type": "vit", "image_size": 30})"), HasSubstr("30 x 30"));
  EXPECT_THAT(refusal_of(R"({"architecture": "vit_base_patch16_rope_224"})"),
              HasSubstr("vit_base_patch16_rope_224"));
  const auto with = [](const json& arguments) {
    return refusal_of(
        json({{"architecture", "vit_tiny_patch16_224"}, {"model_args", arguments}}).dump());
  };
  EXPECT_THAT(with({{"reg_tokens", 4}}), HasSubstr("reg_tokens is 4"));
  EXPECT_THAT(with({{"init_values", 1e-5}}), HasSubstr("init_values"));
  EXPECT_THAT(with({{"global_pool", "avg"}}), HasSubstr("class_token true"));
  EXPECT_THAT(with({{"img_size", {224, 192}}}), HasSubstr("only squares"));
}

TEST(ExchangeVit, ModelsWithoutCounterpartAreRefused) {
  ModelSpec spec = small_vit(Pooling::mean);
  EXPECT_NO_THROW(require_counterpart(spec, Library::timm));
  EXPECT_THROW(require_counterpart(spec, Library::transformers), Error);
  spec.position = model::Position::sincos2d;
  EXPECT_THROW(require_counterpart(spec, Library::timm), Error);
  EXPECT_THROW(require_counterpart(small(model::Family::gpt2), Library::timm), Error);
  ModelSpec text = small(model::Family::gpt2);
  EXPECT_NO_THROW(require_counterpart(text, Library::transformers));
  text.unbiased_qkv = true;
  EXPECT_THROW(require_counterpart(text, Library::transformers), Error);
}

}  // namespace
}  // namespace hyperslab::interop
