// SPDX-License-Identifier: Apache-2.0
#include "exchange_vit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>

#include "preprocessing.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using model::Pooling;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr Dim kMostPixels = 1 << 16;
constexpr double kTimmNormEps = 1e-6;  // the default of timm's VisionTransformer

/// A size in the names of timm's models.
struct TimmSize {
  std::string_view name;
  Dim width;
  Dim layers;
  Dim heads;
};
constexpr std::array<TimmSize, 5> kTimmSizes = {{{"tiny", 192, 12, 3},
                                                 {"small", 384, 12, 6},
                                                 {"base", 768, 12, 12},
                                                 {"large", 1024, 24, 16},
                                                 {"huge", 1280, 32, 16}}};

/// Sets the sizes that follow from the others.
void complete(ModelSpec& spec) {
  spec.kv_heads = spec.heads;
  spec.vocabulary = spec.image.classes;
  spec.context = spec.image.tokens();
  spec.embedding_scale = 1;
}

void check_sizes(const ModelSpec& spec, Complaints& complaints) {
  complaints.unless(
      spec.image.size % spec.image.patch == 0,
      fmt::format("patches of {0} x {0} pixels do not cut an image of {1} x {1} evenly",
                  spec.image.patch, spec.image.size));
  complaints.unless(spec.width % spec.heads == 0,
                    fmt::format("{} heads do not divide a width of {}", spec.heads, spec.width));
  complaints.unless(spec.image.channels == 1 || spec.image.channels == 3,
                    fmt::format("images have 1 or 3 channels here, found {}", spec.image.channels));
  complaints.unless(spec.image.classes >= 2, "a class head needs at least 2 classes");
}

/// Rows and columns of a square: a number, or a list of two equal ones.
Dim side(ConfigReader& config, const char* key, Dim fallback, Complaints& complaints) {
  const json* value = config.find(key);
  if (value == nullptr || !value->is_array()) return config.size(key, fallback, kMostPixels);
  const bool square = value->size() == 2 && (*value)[0] == (*value)[1] &&
                      (*value)[0].is_number_unsigned() && (*value)[0] >= 1 &&
                      (*value)[0] <= kMostPixels;
  complaints.unless(square, fmt::format("{} is {}, only squares are read", key, shown(*value)));
  return square ? (*value)[0].get<Dim>() : fallback;
}

/// Sizes by the name of an architecture, "vit_small_patch16_224".
void read_architecture(Import& in, ModelSpec& spec) {
  const std::string name = in.config.text("architecture", "");
  static const std::regex pattern("vit_([a-z]+)_patch([0-9]{1,4})_([0-9]{1,5})");
  std::smatch parts;
  if (std::regex_match(name, parts, pattern)) {
    for (const TimmSize& size : kTimmSizes) {
      if (parts[1].str() != size.name) continue;
      spec.width = size.width;
      spec.layers = size.layers;
      spec.heads = size.heads;
      spec.image.patch = std::stoll(parts[2].str());
      spec.image.size = std::stoll(parts[3].str());
      if (spec.image.patch > 0 && spec.image.size > 0) return;
    }
  }
  throw Error(
      ExitCode::checkpoint,
      fmt::format("{}: architecture is {}; vit_SIZE_patchP_N of timm is read, where SIZE is "
                  "tiny, small, base, large or huge",
                  in.file, name));
}

/// Rows and columns of pixels that pretrained_cfg gives as (channels, rows, columns).
void read_input_size(Import& in, ModelSpec& spec) {
  const json* pretrained = in.config.find("pretrained_cfg");
  if (pretrained == nullptr || !pretrained->is_object()) return;
  const auto size = pretrained->find("input_size");
  if (size == pretrained->end() || !size->is_array() || size->size() != 3) return;
  const json& rows = (*size)[1];
  const bool square = rows.is_number_unsigned() && rows == (*size)[2] && rows >= 1;
  in.complaints.unless(square && rows <= kMostPixels,
                       fmt::format("input_size is {}, only squares are read", shown(*size)));
  if (square && rows <= kMostPixels) spec.image.size = rows.get<Dim>();
}

/// Arguments of timm's VisionTransformer that decide nothing that a trained model computes.
constexpr std::array<std::string_view, 10> kHarmlessArguments = {
    "attn_drop_rate",  "drop_path_rate", "drop_rate",      "dynamic_img_pad", "dynamic_img_size",
    "patch_drop_rate", "pos_drop_rate",  "proj_drop_rate", "strict_img_size", "weight_init"};
/// Those that must be absent, null or have this value.
struct NeutralArgument {
  std::string_view key;
  std::string_view json;
};
constexpr std::array<NeutralArgument, 11> kNeutralArguments = {{{"final_norm", "true"},
                                                                {"init_values", "null"},
                                                                {"no_embed_class", "false"},
                                                                {"pos_embed", "\"learn\""},
                                                                {"pool_include_prefix", "false"},
                                                                {"pre_norm", "false"},
                                                                {"proj_bias", "true"},
                                                                {"qk_norm", "false"},
                                                                {"reg_tokens", "0"},
                                                                {"scale_attn_norm", "false"},
                                                                {"scale_mlp_norm", "false"}}};

void check_argument(const std::string& key, const json& value, Complaints& complaints) {
  if (value.is_null() || std::ranges::find(kHarmlessArguments, key) != kHarmlessArguments.end()) {
    return;
  }
  const auto* const rule = std::ranges::find(kNeutralArguments, key, &NeutralArgument::key);
  complaints.unless(rule != kNeutralArguments.end() && value == json::parse(rule->json),
                    fmt::format("model_args: {} is {}, which is not done here", key, shown(value)));
}

/// Reads values of model_args, which replace the architecture's own.
void read_arguments(Import& in, ModelSpec& spec, const json& arguments) {
  ConfigReader config(arguments, in.file);
  spec.image.size = side(config, "img_size", spec.image.size, in.complaints);
  spec.image.patch = side(config, "patch_size", spec.image.patch, in.complaints);
  spec.width = config.size("embed_dim", spec.width);
  spec.layers = config.size("depth", spec.layers, 1 << 16);
  spec.heads = config.size("num_heads", spec.heads);
  spec.image.channels = config.size("in_chans", spec.image.channels);
  spec.image.classes = config.size("num_classes", spec.image.classes);
  const double ratio = config.real("mlp_ratio", 4);
  spec.ffn_width = static_cast<Dim>(static_cast<double>(spec.width) * ratio);
  const std::string pool = config.text("global_pool", "token");
  const bool class_token = config.flag("class_token", true);
  const bool fc_norm = config.flag("fc_norm", pool == "avg");
  in.complaints.unless(
      (pool == "token" && class_token && !fc_norm) || (pool == "avg" && !class_token && fc_norm),
      fmt::format("global_pool {}, class_token {}, fc_norm {}: here a class token "
                  "is pooled and then normed, or the mean of patches without a "
                  "class token",
                  pool, class_token, fc_norm));
  spec.image.pooling = pool == "avg" ? Pooling::mean : Pooling::token;
  spec.unbiased_qkv = !config.flag("qkv_bias", true);
  for (const auto& [key, value] : arguments.items()) {
    if (!config.has_read(key)) check_argument(key, value, in.complaints);
  }
}

/// The ratio by which timm multiplies the width, cutting the product to a whole number.
double mlp_ratio(const ModelSpec& spec) {
  const auto width = static_cast<double>(spec.width);
  const double ratio = static_cast<double>(spec.ffn_width) / width;
  const bool falls_short = static_cast<Dim>(width * ratio) < spec.ffn_width;  // by rounding
  return falls_short ? std::nextafter(ratio, std::numeric_limits<double>::infinity()) : ratio;
}

}  // namespace

void check_vit_counterpart(const ModelSpec& spec, Library library, Complaints& complaints) {
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds, fmt::format("model.{} must be {}", key, value));
  };
  wants(spec.position == model::Position::learned, "position", "learned");
  wants(spec.norm == ops::NormKind::layernorm, "norm", "layernorm");
  wants(spec.bias, "bias", "true");
  wants(spec.query_width() == spec.width, "head_width", "model.width / model.heads");
  wants(spec.qk_norm == model::QkNorm::none, "qk_norm", "none");
  wants(spec.kv_heads == spec.heads, "kv_heads", "model.heads");
  if (library == Library::timm) {
    wants(spec.activation == ops::Activation::gelu, "activation", "gelu");
    wants(spec.norm_eps == kTimmNormEps, "norm_eps", "1e-6");
  } else {
    wants(spec.activation == ops::Activation::gelu || spec.activation == ops::Activation::gelu_tanh,
          "activation", "gelu or gelu_tanh");
    wants(spec.image.pooling == Pooling::token, "pooling", "token (--format timm takes mean, too)");
  }
}

void add_vit_config(const ModelSpec& spec, double dropout_of_probabilities, ordered_json& config) {
  config["image_size"] = spec.image.size;
  config["patch_size"] = spec.image.patch;
  config["num_channels"] = spec.image.channels;
  config["hidden_size"] = spec.width;
  config["num_hidden_layers"] = spec.layers;
  config["num_attention_heads"] = spec.heads;
  config["intermediate_size"] = spec.ffn_width;
  config["hidden_act"] = spec.activation == ops::Activation::gelu ? "gelu" : "gelu_pytorch_tanh";
  config["layer_norm_eps"] = spec.norm_eps;
  config["qkv_bias"] = spec.has_qkv_bias();
  config["hidden_dropout_prob"] = spec.dropout;
  config["attention_probs_dropout_prob"] = dropout_of_probabilities;
  for (Dim k = 0; k < spec.image.classes; ++k) {
    const std::string label = fmt::format("LABEL_{}", k);
    config["id2label"][std::to_string(k)] = label;
    config["label2id"][label] = k;
  }
}

std::string timm_config_json(const ModelSpec& spec, const image::AugmentConfig& augment) {
  const bool token = spec.image.pooling == Pooling::token;
  const char* pool = token ? "token" : "avg";
  ordered_json arguments;
  arguments["img_size"] = {spec.image.size, spec.image.size};
  arguments["patch_size"] = spec.image.patch;
  arguments["in_chans"] = spec.image.channels;
  arguments["num_classes"] = spec.image.classes;
  arguments["embed_dim"] = spec.width;
  arguments["depth"] = spec.layers;
  arguments["num_heads"] = spec.heads;
  arguments["mlp_ratio"] = mlp_ratio(spec);
  if (!spec.has_qkv_bias()) arguments["qkv_bias"] = false;
  arguments["class_token"] = token;
  arguments["global_pool"] = pool;
  ordered_json pretrained;
  pretrained["input_size"] = {spec.image.channels, spec.image.size, spec.image.size};
  pretrained["num_classes"] = spec.image.classes;
  add_preprocessing(augment, pretrained);
  pretrained["first_conv"] = "patch_embed.proj";
  pretrained["classifier"] = "head";
  ordered_json config;
  config["architecture"] = "vit_base_patch16_224";  // model_args replaces its sizes
  config["num_classes"] = spec.image.classes;
  config["num_features"] = spec.width;
  config["global_pool"] = pool;
  config["model_args"] = arguments;
  config["pretrained_cfg"] = pretrained;
  return config.dump(2) + "\n";
}

ModelSpec read_vit(Import& in) {
  ModelSpec spec = model::preset(model::Family::vit);
  ConfigReader& config = in.config;
  spec.layers = config.size("num_hidden_layers", 12, 1 << 16);
  spec.width = config.size("hidden_size", 768);
  spec.heads = config.size("num_attention_heads", 12);
  spec.ffn_width = config.size("intermediate_size", 3072);
  spec.norm_eps = config.real("layer_norm_eps", 1e-12);
  spec.image.size = side(config, "image_size", 224, in.complaints);
  spec.image.patch = side(config, "patch_size", 16, in.complaints);
  spec.image.channels = config.size("num_channels", 3);
  const Dim labels = config.size("num_labels", 2);
  const json* names = config.find("id2label");
  spec.image.classes =
      names != nullptr && names->is_object() ? static_cast<Dim>(names->size()) : labels;
  spec.unbiased_qkv = !config.flag("qkv_bias", true);
  const double init_std = config.real("initializer_range", spec.init_std);
  if (init_std > 0) spec.init_std = init_std;
  const std::string activation = config.text("hidden_act", "gelu");
  const bool tanh = activation == "gelu_pytorch_tanh" || activation == "gelu_new";
  in.complaints.unless(tanh || activation == "gelu",
                       "hidden_act is " + activation + ", only gelu and gelu_new are known");
  if (tanh) spec.activation = ops::Activation::gelu_tanh;
  const double hidden = config.real("hidden_dropout_prob", 0);
  const double probabilities = config.real("attention_probs_dropout_prob", 0);
  read_dropout(in, spec, hidden, hidden, probabilities,
               fmt::format("hidden_dropout_prob {}, attention_probs_dropout_prob {}", hidden,
                           probabilities));
  check_sizes(spec, in.complaints);
  complete(spec);
  return spec;
}

ModelSpec read_timm(Import& in) {
  ModelSpec spec = model::preset(model::Family::vit);
  read_architecture(in, spec);
  read_input_size(in, spec);
  spec.image.classes = in.config.size("num_classes", 1000);
  const json* arguments = in.config.find("model_args");
  const json given = arguments == nullptr ? json::object() : *arguments;
  in.complaints.unless(given.is_object(), "model_args is no object");
  const json pool = {{"global_pool", in.config.text("global_pool", "token")}};
  if (given.is_object()) {
    json all = pool;
    all.update(given);
    read_arguments(in, spec, all);
  }
  if (in.dropout) spec.dropout = *in.dropout;
  check_sizes(spec, in.complaints);
  complete(spec);
  return spec;
}

}  // namespace hyperslab::interop
