// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "hyperslab/train/config.hpp"

// Ranges of numbers and names of choices in decks.

namespace hyperslab::deck {

struct IntegerRange {
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};
/// "two", "three".
[[nodiscard]] constexpr std::string_view number_word(std::size_t number) {
  return number == 2 ? "two" : "three";
}
/// [least, most], without an end that is open.
struct RealRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool open_least = false;
  bool open_most = false;
};
/// "at least 1", "between 1 and 65536".
[[nodiscard]] std::string range_text(const IntegerRange& range);
/// "more than 0", "at least 0 and less than 1".
[[nodiscard]] std::string range_text(const RealRange& range);
[[nodiscard]] bool contains(const RealRange& range, double value);

/// Bounds that keep products of sizes inside 64 bits.
inline constexpr std::int64_t kMostRanks = 65536;
inline constexpr std::int64_t kMostSize = 1 << 24;
inline constexpr std::int64_t kMostLayers = 4096;  // a plan of as many takes seconds
inline constexpr std::int64_t kMostExperts = 65536;
inline constexpr std::int64_t kMostSteps = 1'000'000'000'000;
inline constexpr std::int64_t kMostThreads = 1024;
inline constexpr std::int64_t kMostPadding = 1024;  // pixels
inline constexpr std::int64_t kMostRepeats = 1024;
inline constexpr std::int64_t kMostOperations = 8;  // RandAugment operations for each image
inline constexpr std::int64_t kMostMagnitude = 30;  // RandAugment magnitude
inline constexpr IntegerRange kRanks = {1, kMostRanks};
inline constexpr IntegerRange kSize = {1, kMostSize};
inline constexpr IntegerRange kSizeOrDefault = {0, kMostSize};
inline constexpr IntegerRange kIdOrNone = {-1, std::numeric_limits<std::int32_t>::max() - 1};
inline constexpr IntegerRange kId = {0, std::numeric_limits<std::int32_t>::max() - 1};
inline constexpr IntegerRange kSteps = {0, kMostSteps};
inline constexpr RealRange kPositive = {.least = 0, .open_least = true};
inline constexpr RealRange kNotNegative = {.least = 0};
inline constexpr RealRange kExpertRows = {.least = 1, .most = 1e6};
inline constexpr RealRange kUpToMillion = {.least = 0, .most = 1e6};
inline constexpr RealRange kFraction = {.least = 0, .most = 1};
inline constexpr RealRange kPositiveFraction = {.least = 0, .most = 1, .open_least = true};
inline constexpr RealRange kUpToHalf = {.least = 0, .most = 0.5};
inline constexpr RealRange kBelowOne = {.least = 0, .most = 1, .open_most = true};

template <class Enum>
using Name = std::pair<std::string_view, Enum>;

inline constexpr std::array<Name<model::QkNorm>, 3> kQkNorms = {{
    {"none", model::QkNorm::none},
    {"head", model::QkNorm::head},
    {"width", model::QkNorm::width},
}};
inline constexpr std::array<Name<nn::InitRule>, 2> kInitRules = {{
    {"normal", nn::InitRule::normal},
    {"xavier", nn::InitRule::xavier},
}};
inline constexpr std::array<Name<ops::RouterScore>, 2> kRouterScoreNames = {{
    {"softmax", ops::RouterScore::softmax},
    {"sigmoid", ops::RouterScore::sigmoid},
}};
inline constexpr std::array<Name<nn::Balance>, 3> kBalanceNames = {{
    {"sequence", nn::Balance::sequence},
    {"batch", nn::Balance::batch},
    {"none", nn::Balance::none},
}};
inline constexpr std::array<Name<nn::DropPathRule>, 2> kDropPathRules = {{
    {"linear", nn::DropPathRule::linear},
    {"constant", nn::DropPathRule::constant},
}};
inline constexpr std::array<Name<model::RopeScaling>, 4> kRopeScalings = {{
    {"none", model::RopeScaling::none},
    {"linear", model::RopeScaling::linear},
    {"llama3", model::RopeScaling::llama3},
    {"yarn", model::RopeScaling::yarn},
}};
inline constexpr std::array<Name<model::Position>, 5> kPositions = {{
    {"learned", model::Position::learned},
    {"sinusoidal", model::Position::sinusoidal},
    {"rope", model::Position::rope},
    {"none", model::Position::none},
    {"sincos2d", model::Position::sincos2d},
}};
inline constexpr std::array<Name<model::Pooling>, 2> kPoolings = {{
    {"token", model::Pooling::token},
    {"mean", model::Pooling::mean},
}};
inline constexpr std::array<Name<io::BrokenImages>, 2> kBrokenImages = {{
    {"refuse", io::BrokenImages::refuse},
    {"skip", io::BrokenImages::skip},
}};
inline constexpr std::array<Name<train::Loss>, 4> kLosses = {{
    {"cross_entropy", train::Loss::cross_entropy},
    {"clipped", train::Loss::clipped},
    {"preference", train::Loss::preference},
    {"distillation", train::Loss::distillation},
}};
inline constexpr std::array<Name<io::Documents>, 2> kDocuments = {{
    {"joined", io::Documents::joined},
    {"masked", io::Documents::masked},
}};
inline constexpr std::array<Name<io::DecodeOn>, 3> kDecodeOn = {{
    {"auto", io::DecodeOn::automatic},
    {"cpu", io::DecodeOn::cpu},
    {"gpu", io::DecodeOn::gpu},
}};
inline constexpr std::array<Name<image::Crop>, 3> kCrops = {{
    {"resized", image::Crop::resized},
    {"padded", image::Crop::padded},
    {"center", image::Crop::center},
}};
inline constexpr std::array<Name<image::Interpolation>, 2> kInterpolations = {{
    {"bilinear", image::Interpolation::bilinear},
    {"bicubic", image::Interpolation::bicubic},
}};
inline constexpr std::array<Name<image::MixMode>, 2> kMixModes = {{
    {"pair", image::MixMode::pair},
    {"batch", image::MixMode::batch},
}};
inline constexpr std::array<Name<image::Policy>, 4> kPolicies = {{
    {"none", image::Policy::none},
    {"randaugment", image::Policy::randaugment},
    {"autoaugment-cifar10", image::Policy::autoaugment_cifar10},
    {"autoaugment-imagenet", image::Policy::autoaugment_imagenet},
}};
inline constexpr std::array<Name<ops::NormKind>, 3> kNorms = {{
    {"layernorm", ops::NormKind::layernorm},
    {"rmsnorm", ops::NormKind::rmsnorm},
    {"none", ops::NormKind::none},
}};
inline constexpr std::array<Name<model::NormPlace>, 4> kNormPlaces = {{
    {"pre", model::NormPlace::pre},
    {"post", model::NormPlace::post},
    {"sandwich", model::NormPlace::sandwich},
    {"post_sublayer", model::NormPlace::post_sublayer},
}};
inline constexpr std::array<Name<model::AttentionPath>, 4> kAttentionPaths = {{
    {"auto", model::AttentionPath::automatic},
    {"cudnn", model::AttentionPath::cudnn},
    {"fused", model::AttentionPath::fused},
    {"reference", model::AttentionPath::reference},
}};

/// Names that the enumeration's own module gives.
template <class Enum, std::size_t N>
[[nodiscard]] constexpr std::array<Name<Enum>, N> names_by_module(const std::array<Enum, N>& all) {
  std::array<Name<Enum>, N> table;
  for (std::size_t i = 0; i < N; ++i) table[i] = {name_of(all[i]), all[i]};
  return table;
}
inline constexpr auto kFamilies =
    names_by_module(std::array{model::Family::gpt2, model::Family::llama, model::Family::vit});
inline constexpr auto kPrecisions =
    names_by_module(std::array{Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16});
inline constexpr auto kGradientPrecisions =
    names_by_module(std::array{Precision::fp32, Precision::bf16});
inline constexpr auto kGemmPrecisions =
    names_by_module(std::array{train::GemmPrecision::compute, train::GemmPrecision::fp8_tensor,
                               train::GemmPrecision::fp8_row, train::GemmPrecision::fp8_block});
inline constexpr auto kActivations = names_by_module(ops::kActivations);
inline constexpr auto kRecomputes = names_by_module(nn::kRecomputes);
inline constexpr auto kPipelineSchedules = names_by_module(mesh::kTrainingSchedules);
inline constexpr std::array<Name<mesh::ExchangeKind>, 3> kExchangeKinds = {{
    {"auto", mesh::ExchangeKind::automatic},
    {"all_to_all", mesh::ExchangeKind::all_to_all},
    {"all_gather", mesh::ExchangeKind::all_gather},
}};
inline constexpr auto kSamplings =
    names_by_module(std::array{io::Sampling::blocks, io::Sampling::windows});
inline constexpr auto kPackings = names_by_module(
    std::array{io::Packing::contiguous, io::Packing::document, io::Packing::best_fit});
inline constexpr std::array<Name<io::RawIds>, 2> kRawIds = {{
    {"uint16", io::RawIds::uint16},
    {"uint32", io::RawIds::uint32},
}};
inline constexpr std::array<Name<train::DeviceChoice>, 3> kDevices = {{
    {"auto", train::DeviceChoice::automatic},
    {"cpu", train::DeviceChoice::cpu},
    {"cuda", train::DeviceChoice::cuda},
}};
inline constexpr std::array<Name<train::CheckLinks>, 3> kCheckLinks = {{
    {"auto", train::CheckLinks::automatic},
    {"always", train::CheckLinks::always},
    {"never", train::CheckLinks::never},
}};
inline constexpr auto kOptimizers = [] {
  std::array<Name<optim::OptimizerKind>, optim::kOptimizerTraits.size()> names{};
  std::ranges::transform(optim::kOptimizerTraits, names.begin(),
                         [](const optim::OptimizerTraits& traits) {
                           return Name<optim::OptimizerKind>{traits.name, traits.kind};
                         });
  return names;
}();
inline constexpr auto kStates = names_by_module(optim::kStateKinds);
inline constexpr auto kHomes = names_by_module(std::array{Home::device, Home::host});
inline constexpr auto kStorageFormats = names_by_module(param::kStorageFormats);
inline constexpr std::array<Name<train::WeightBits>, 3> kWeightBits = {{
    {"none", train::WeightBits::none},
    {"int8", train::WeightBits::int8},
    {"int4", train::WeightBits::int4},
}};
inline constexpr std::array<Name<ops::ActivationFormat>, 2> kActivationFormats = {{
    {"none", ops::ActivationFormat::none},
    {"dynamic-int8", ops::ActivationFormat::dynamic_int8},
}};
inline constexpr std::array<Name<train::SpikePolicy>, 4> kSpikePolicies = {{
    {"ignore", train::SpikePolicy::ignore},
    {"log", train::SpikePolicy::log},
    {"skip", train::SpikePolicy::skip},
    {"roll_back", train::SpikePolicy::roll_back},
}};
inline constexpr auto kAdapterTargets = names_by_module(nn::kAdapterTargets);
/// Those that decks may name; adapters have a section.
inline constexpr std::array<Name<param::Role>, 6> kRoles = {{
    {"matrix", param::Role::matrix},
    {"embedding", param::Role::embedding},
    {"head", param::Role::head},
    {"norm", param::Role::norm},
    {"bias", param::Role::bias},
    {"router", param::Role::router},
}};

inline constexpr auto kSchedules = names_by_module(optim::kScheduleKinds);

}  // namespace hyperslab::deck
