// SPDX-License-Identifier: Apache-2.0
#include "preprocessing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "complaints.hpp"
#include "config_reader.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/text_file.hpp"

namespace hyperslab::interop {
namespace {

using image::AugmentConfig;
using image::Interpolation;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uint64_t kMostBytes = 16 << 20;
constexpr double kShade = 1.0 / 255;
// Pillow's numbers, which transformers writes.
constexpr int kPillowBilinear = 2;
constexpr int kPillowBicubic = 3;

/// Keys of timm's pretrained_cfg that decide nothing about images in an evaluation.
constexpr std::array<std::string_view, 26> kHarmlessOfTimm = {"architecture",
                                                              "classifier",
                                                              "custom_load",
                                                              "description",
                                                              "file",
                                                              "first_conv",
                                                              "fixed_input_size",
                                                              "hf_hub_filename",
                                                              "hf_hub_id",
                                                              "input_size",
                                                              "label_descriptions",
                                                              "label_names",
                                                              "label_offset",
                                                              "license",
                                                              "min_input_size",
                                                              "notes",
                                                              "num_classes",
                                                              "origin_url",
                                                              "paper_ids",
                                                              "paper_name",
                                                              "pool_size",
                                                              "source",
                                                              "state_dict",
                                                              "tag",
                                                              "test_input_size",
                                                              "url"};
/// Keys of preprocessor_config.json that decide nothing here.
constexpr std::array<std::string_view, 11> kHarmlessOfTransformers = {
    "_processor_class",  "data_format",     "default_to_square",      "device",
    "disable_grouping",  "do_convert_rgb",  "feature_extractor_type", "image_processor_type",
    "input_data_format", "processor_class", "return_tensors"};

/// Three numbers for the channels, or one for all of them.
std::array<double, 3> of_channels(ConfigReader& config, const char* key,
                                  const std::array<double, 3>& fallback, Complaints& complaints) {
  const json* value = config.find(key);
  if (value == nullptr) return fallback;
  const json list = value->is_array() ? *value : json::array({*value});
  const auto is_number = [](const json& one) { return one.is_number(); };
  if ((list.size() != 1 && list.size() != 3) || !std::ranges::all_of(list, is_number)) {
    complaints.unless(false, fmt::format("{} is {}, expected three numbers", key, shown(*value)));
    return fallback;
  }
  std::array<double, 3> out{};
  for (std::size_t c = 0; c < out.size(); ++c)
    out[c] = list[list.size() == 1 ? 0 : c].get<double>();
  return out;
}

void check_deviation(const AugmentConfig& augment, const char* key, Complaints& complaints) {
  for (const double each : augment.deviation) {
    complaints.unless(each > 0, fmt::format("{} must be above 0, found {}", key, each));
  }
}

AugmentConfig read_timm(ConfigReader& config, Complaints& complaints) {
  AugmentConfig augment;
  augment.mean = of_channels(config, "mean", augment.mean, complaints);
  augment.deviation = of_channels(config, "std", augment.deviation, complaints);
  check_deviation(augment, "std", complaints);
  augment.validation_crop = config.real("crop_pct", augment.validation_crop);
  complaints.unless(augment.validation_crop > 0 && augment.validation_crop <= 1,
                    fmt::format("crop_pct is {}, only above 0 and up to 1 is done here",
                                augment.validation_crop));
  const std::string interpolation = config.text("interpolation", "bicubic");
  complaints.unless(
      interpolation == "bicubic" || interpolation == "bilinear",
      fmt::format("interpolation is {}, only bicubic and bilinear are done here", interpolation));
  augment.interpolation =
      interpolation == "bilinear" ? Interpolation::bilinear : Interpolation::bicubic;
  const std::string mode = config.text("crop_mode", "center");
  complaints.unless(mode == "center",
                    fmt::format("crop_mode is {}, only center is done here", mode));
  return augment;
}

/// Images must be resized to the size of the model's, and not be cropped.
void check_resizing(ConfigReader& config, Dim image_size, Complaints& complaints) {
  complaints.unless(config.flag("do_resize", true), "do_resize is false, only true is done here");
  complaints.unless(!config.flag("do_center_crop", false),
                    "do_center_crop is true, only false is done here");
  complaints.unless(!config.flag("do_pad", false), "do_pad is true, only false is done here");
  (void)config.find("crop_size");  // without a crop
  (void)config.find("pad_size");
  const json* size = config.find("size");
  const json square = {{"height", image_size}, {"width", image_size}};
  complaints.unless(size == nullptr || *size == square || *size == json(image_size),
                    fmt::format("size is {}, and the model's images have {} x {} pixels",
                                size == nullptr ? "" : shown(*size), image_size, image_size));
}

AugmentConfig read_transformers(ConfigReader& config, Dim image_size, Complaints& complaints,
                                const std::string& file) {
  AugmentConfig augment;
  check_resizing(config, image_size, complaints);
  augment.mean = of_channels(config, "image_mean", {0.5, 0.5, 0.5}, complaints);
  augment.deviation = of_channels(config, "image_std", {0.5, 0.5, 0.5}, complaints);
  check_deviation(augment, "image_std", complaints);
  if (!config.flag("do_normalize", true)) {
    augment.mean = {0, 0, 0};
    augment.deviation = {1, 1, 1};
  }
  complaints.unless(config.flag("do_rescale", true), "do_rescale is false, only true is done here");
  const double rescale = config.real("rescale_factor", kShade);
  complaints.unless(std::abs(rescale - kShade) < 1e-9,
                    fmt::format("rescale_factor is {}, only 1/255 is done here", rescale));
  const json* resample = config.find("resample");
  const int number = resample == nullptr              ? kPillowBilinear
                     : resample->is_number_unsigned() ? resample->get<int>()
                                                      : -1;
  complaints.unless(number == kPillowBilinear || number == kPillowBicubic,
                    "resample must be 2 (bilinear) or 3 (bicubic)");
  augment.interpolation =
      number == kPillowBicubic ? Interpolation::bicubic : Interpolation::bilinear;
  augment.validation_crop = 1;
  log::warn(
      file +
      ": transformers squeezes the whole image into a square; here the shorter side is resized "
      "and the middle is taken, which differs for images that are not square");
  return augment;
}

json read_json(const std::string& path) {
  const std::string text = io::read_text_file(path, kMostBytes);
  if (io::is_too_deep(text)) throw Error(ExitCode::checkpoint, path + ": is nested too deeply");
  json parsed = json::parse(text, nullptr, false);
  if (parsed.is_object()) return parsed;
  throw Error(ExitCode::checkpoint, path + ": expected a JSON object");
}

}  // namespace

AugmentConfig image_preprocessing(const std::string& folder,
                                  const std::vector<std::string>& ignored_keys) {
  const std::filesystem::path root(folder);
  const std::string own = (root / "config.json").string();
  const std::string processor = (root / "preprocessor_config.json").string();
  const json config = read_json(own);
  Complaints complaints;
  AugmentConfig augment;
  std::string file = own;
  if (const auto found = config.find("pretrained_cfg");
      found != config.end() && found->is_object()) {
    ConfigReader reader(*found, file);
    augment = read_timm(reader, complaints);
    reader.check_all(kHarmlessOfTimm, ignored_keys, complaints);
  } else if (std::filesystem::exists(processor)) {
    file = processor;
    const json parsed = read_json(processor);
    ConfigReader reader(parsed, file);
    constexpr Dim kDefaultSize = 224;  // the default of ViTConfig
    const bool has_size =
        config.contains("image_size") && config["image_size"].is_number_unsigned();
    augment = read_transformers(reader, has_size ? config["image_size"].get<Dim>() : kDefaultSize,
                                complaints, file);
    reader.check_all(kHarmlessOfTransformers, ignored_keys, complaints);
  } else {
    log::warn(
        folder +
        ": nothing says how its images are normalized (no preprocessor_config.json): the deck "
        "has ImageNet's mean and deviation; set augment.mean and augment.deviation if they are "
        "others");
  }
  complaints.raise(ExitCode::checkpoint, file);
  return augment;
}

std::string preprocessor_json(const model::ModelSpec& spec, const AugmentConfig& augment) {
  ordered_json config;
  config["image_processor_type"] = "ViTImageProcessor";
  config["do_resize"] = true;
  config["size"] = {{"height", spec.image.size}, {"width", spec.image.size}};
  config["resample"] =
      augment.interpolation == Interpolation::bicubic ? kPillowBicubic : kPillowBilinear;
  config["do_rescale"] = true;
  config["rescale_factor"] = kShade;
  config["do_normalize"] = true;
  config["image_mean"] = augment.mean;
  config["image_std"] = augment.deviation;
  return config.dump(2) + "\n";
}

void add_preprocessing(const AugmentConfig& augment, ordered_json& pretrained) {
  pretrained["interpolation"] =
      augment.interpolation == Interpolation::bicubic ? "bicubic" : "bilinear";
  pretrained["crop_pct"] = augment.validation_crop;
  pretrained["crop_mode"] = "center";
  pretrained["mean"] = augment.mean;
  pretrained["std"] = augment.deviation;
}

}  // namespace hyperslab::interop
