// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "draws.hpp"
#include "hyperslab/core/error.hpp"
#include "parts.hpp"
#include "policy_tables.hpp"

namespace hyperslab::image {
namespace {

using Kind = ops::ImageOperationKind;

/// The strength of an operation: `bin` of `bins` equal steps from none to the most; `sign` is -1 or
/// 1. The largest values come from Cubuk et al. (2019), table 6, as torchvision has them.
struct Magnitude {
  int bin = 0;
  int bins = 10;
  double sign = 1;
  [[nodiscard]] double share() const { return static_cast<double>(bin) / (bins - 1); }
};

/// Fixed point 16.16 as Pillow rounds it (src/libImaging/Geometry.c, affine_fixed).
std::int32_t fixed_point(double value) {
  return static_cast<std::int32_t>(std::floor(value * 65536.0 + 0.5));
}

/// The source of pixel (x, y): (a x + b y + c, d x + e y + f) of pixels' middles.
ops::ImageOperation affine(double a, double b, double c, double d, double e, double f) {
  ops::ImageOperation out{.kind = Kind::affine};
  const double values[6] = {a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5};
  std::ranges::transform(values, out.matrix, fixed_point);
  return out;
}

/// Around the middle, counterclockwise, as Pillow's Image.rotate.
ops::ImageOperation rotation(double degrees, double size) {
  const double angle = -degrees * std::numbers::pi / 180;
  const double c = std::cos(angle);
  const double s = std::sin(angle);
  const double middle = size / 2;
  return affine(c, s, middle - (c + s) * middle, -s, c, middle - (c - s) * middle);
}

ops::ImageOperation blending(Kind kind, double factor) {
  return {.kind = kind, .factor = static_cast<float>(factor)};
}

ops::ImageOperation operation_of(PolicyOperation operation, const Magnitude& magnitude, Dim size) {
  using enum PolicyOperation;
  const auto pixels = static_cast<double>(size);
  const double share = magnitude.sign * magnitude.share();
  const double factor = 1 + 0.9 * share;
  const double shift = std::trunc(150.0 / 331.0 * pixels * share);
  switch (operation) {
    case shear_x: return affine(1, 0.3 * share, 0, 0, 1, 0);
    case shear_y: return affine(1, 0, 0, 0.3 * share, 1, 0);
    case translate_x: return affine(1, 0, -shift, 0, 1, 0);
    case translate_y: return affine(1, 0, 0, 0, 1, -shift);
    case rotate: return rotation(30 * share, pixels);
    case brightness: return blending(Kind::brightness, factor);
    case color: return blending(Kind::saturation, factor);
    case contrast: return blending(Kind::contrast, factor);
    case sharpness: return blending(Kind::sharpness, factor);
    case posterize:
      return {.kind = Kind::posterize,
              .level = 8 - static_cast<int>(std::nearbyint(4 * magnitude.share()))};
    case solarize:
      return {.kind = Kind::solarize,
              .level = static_cast<int>(std::ceil(255 * (1 - magnitude.share()) - 1e-6))};
    case autocontrast: return {.kind = Kind::autocontrast};
    case equalize: return {.kind = Kind::equalize};
    case identity:
    case invert: break;
  }
  return {.kind = Kind::invert};
}

/// True if a coin decides the direction.
bool has_sign(PolicyOperation operation) {
  return operation >= PolicyOperation::shear_x && operation <= PolicyOperation::sharpness;
}

void append_step(PolicyOperation operation, const Magnitude& magnitude, Dim size,
                 ops::ImageAugmentation& augmentation) {
  if (operation == PolicyOperation::identity) return;
  append(operation_of(operation, magnitude, size), augmentation);
}

/// Gives pixels that affine operations uncover the level `fill`.
void fill_uncovered(std::int64_t fill, ops::ImageAugmentation& augmentation) {
  for (ops::ImageOperation& operation : augmentation.operations) {
    if (operation.kind == Kind::affine) operation.level = static_cast<std::int32_t>(fill);
  }
}

/// RandAugment (Cubuk et al. 2020): operations of equal probability and strength, with
/// torchvision's list, which has no inversion.
void draw_randaugment(const AugmentConfig& config, Dim size, Draws& draws,
                      ops::ImageAugmentation& augmentation) {
  constexpr int kBins = 31;
  constexpr auto kOperations = static_cast<std::int64_t>(PolicyOperation::invert);
  for (std::int64_t i = 0; i < config.policy_operations; ++i) {
    const auto operation = static_cast<PolicyOperation>(draws.below(kOperations));
    Magnitude magnitude{.bin = static_cast<int>(config.policy_magnitude), .bins = kBins};
    const bool reversed = draws.chance(0.5);
    if (has_sign(operation) && reversed) magnitude.sign = -1;
    append_step(operation, magnitude, size, augmentation);
  }
}

/// One of 25 pairs, each of whose steps has a probability and a strength.
void draw_autoaugment(const PolicyTable& table, Dim size, Draws& draws,
                      ops::ImageAugmentation& augmentation) {
  const auto& policy = table[static_cast<std::size_t>(draws.below(std::ssize(table)))];
  for (const PolicyStep& step : policy) {
    const bool happens = draws.chance(step.probability);
    const bool reversed = draws.chance(0.5);
    if (!happens) continue;
    Magnitude magnitude{.bin = step.magnitude};
    if (has_sign(step.operation) && reversed) magnitude.sign = -1;
    append_step(step.operation, magnitude, size, augmentation);
  }
}

}  // namespace

void draw_jitter(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                 ops::ImageAugmentation& augmentation) {
  Draws draws(seed, "jitter", index);
  std::array<std::pair<Kind, double>, 3> changes = {{{Kind::brightness, config.brightness},
                                                     {Kind::contrast, config.contrast},
                                                     {Kind::saturation, config.saturation}}};
  for (std::size_t i = changes.size() - 1; i > 0; --i) {  // Fisher and Yates
    std::swap(changes[i], changes[static_cast<std::size_t>(draws.below(static_cast<Dim>(i) + 1))]);
  }
  for (const auto& [kind, most] : changes) {
    const double factor = draws.uniform(std::max(0.0, 1 - most), 1 + most);
    if (most > 0) append(blending(kind, factor), augmentation);
  }
}

void draw_policy(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index, Dim size,
                 ops::ImageAugmentation& augmentation) {
  Draws draws(seed, "policy", index);
  switch (config.policy) {
    case Policy::none: return;
    case Policy::randaugment: draw_randaugment(config, size, draws, augmentation); break;
    case Policy::autoaugment_cifar10:
      draw_autoaugment(policy_tables::kCifar10, size, draws, augmentation);
      break;
    case Policy::autoaugment_imagenet:
      draw_autoaugment(policy_tables::kImageNet, size, draws, augmentation);
      break;
  }
  fill_uncovered(config.policy_fill, augmentation);
}

}  // namespace hyperslab::image
