// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "draws.hpp"
#include "parts.hpp"

namespace hyperslab::image {
namespace {

/// Python's round: ties to even.
double rounded(double value) { return std::nearbyint(value); }

/// The largest middle part whose ratio is within the limits.
Part fallback_part(const AugmentConfig& config, double width, double height) {
  Part part{.width = width, .height = height};
  const double ratio = width / height;
  if (ratio < config.ratio[0]) part.height = rounded(width / config.ratio[0]);
  if (ratio > config.ratio[1]) part.width = rounded(height * config.ratio[1]);
  part.left = std::floor((width - part.width) / 2);
  part.top = std::floor((height - part.height) / 2);
  return part;
}

}  // namespace

Part random_part(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                 ImageSize source) {
  constexpr int kTries = 10;
  Draws draws(seed, "crop", index);
  const auto width = static_cast<double>(source.width);
  const auto height = static_cast<double>(source.height);
  for (int i = 0; i < kTries; ++i) {
    const double area = width * height * draws.uniform(config.scale[0], config.scale[1]);
    const double ratio =
        std::exp(draws.uniform(std::log(config.ratio[0]), std::log(config.ratio[1])));
    Part part{.width = rounded(std::sqrt(area * ratio)),
              .height = rounded(std::sqrt(area / ratio))};
    if (part.width < 1 || part.width > width || part.height < 1 || part.height > height) continue;
    part.top =
        static_cast<double>(draws.below(static_cast<std::int64_t>(height - part.height) + 1));
    part.left = static_cast<double>(draws.below(static_cast<std::int64_t>(width - part.width) + 1));
    return part;
  }
  return fallback_part(config, width, height);
}

Part middle_part(const AugmentConfig& config, ImageSize source, Dim size) {
  const auto target = static_cast<double>(size);
  // 1e-9: 28 / 0.875 is 32, whatever the division's last bit is.
  const double shorter = std::max(target, std::floor(target / config.validation_crop + 1e-9));
  const double scale = shorter / std::min(source.width, source.height);
  const double width =
      source.width <= source.height ? shorter : std::floor(source.width * scale + 1e-9);
  const double height =
      source.height <= source.width ? shorter : std::floor(source.height * scale + 1e-9);
  const double across = source.width / width;  // pixels of the file in one of the resized image
  const double down = source.height / height;
  return {.left = rounded((width - target) / 2) * across,
          .top = rounded((height - target) / 2) * down,
          .width = target * across,
          .height = target * down};
}

}  // namespace hyperslab::image
