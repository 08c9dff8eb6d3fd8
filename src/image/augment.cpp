// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/image/augment.hpp"

#include <algorithm>
#include <cmath>

#include "draws.hpp"
#include "hyperslab/core/error.hpp"
#include "parts.hpp"

namespace hyperslab::image {
namespace {

Part whole(ImageSize source) {
  return {.width = static_cast<double>(source.width), .height = static_cast<double>(source.height)};
}

/// The part of the file's image that sample `index` shows.
Part training_part(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                   ImageSize source, Dim size) {
  switch (config.crop) {
    case Crop::resized: return random_part(config, seed, index, source);
    case Crop::padded: return whole(source);
    case Crop::center: return middle_part(config, source, size);
  }
  return whole(source);
}

/// Decoded pixels for one of the file. A JPEG that is decoded to k/8 of its size has its last
/// pixels rounded up: they reach beyond the edge, and the scale is k/8 all the same.
double scale_of(std::int32_t source, std::int32_t decoded) {
  if (decoded == source) return 1;
  for (const int eighths : {1, 2, 4}) {
    if ((std::int64_t{source} * eighths + 7) / 8 == decoded) return eighths / 8.0;
  }
  return static_cast<double>(decoded) / source;
}

ops::ImageAugmentation augmentation_of(const Part& part, ImageSize source, ImageSize decoded,
                                       bool reads_beyond) {
  const double across = scale_of(source.width, decoded.width);
  const double down = scale_of(source.height, decoded.height);
  ops::ImageAugmentation out;
  out.left = part.left * across;
  out.top = part.top * down;
  out.right = (part.left + part.width) * across;
  out.bottom = (part.top + part.height) * down;
  out.reads_beyond = reads_beyond ? 1 : 0;
  return out;
}

/// torchvision's RandomErasing: ten tries for a box that is smaller than the image.
ops::ImageBox erased_box(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                         Dim size) {
  constexpr int kTries = 10;
  Draws draws(seed, "erase", index);
  if (!draws.chance(config.erase)) return {};
  for (int i = 0; i < kTries; ++i) {
    const double area = static_cast<double>(size * size) *
                        draws.uniform(config.erase_area[0], config.erase_area[1]);
    const double ratio =
        std::exp(draws.uniform(std::log(config.erase_ratio[0]), std::log(config.erase_ratio[1])));
    const auto height = static_cast<std::int32_t>(std::nearbyint(std::sqrt(area * ratio)));
    const auto width = static_cast<std::int32_t>(std::nearbyint(std::sqrt(area / ratio)));
    if (height >= size || width >= size) continue;
    const auto top = static_cast<std::int32_t>(draws.below(size - height + 1));
    const auto left = static_cast<std::int32_t>(draws.below(size - width + 1));
    return {.left = left, .top = top, .width = width, .height = height};
  }
  return {};
}

/// Zero padding of `pad` pixels on all sides, then a random window of the size.
void draw_shift(std::int64_t pad, std::uint64_t seed, std::uint64_t index,
                ops::ImageAugmentation& augmentation) {
  Draws draws(seed, "shift", index);
  augmentation.shift_x = static_cast<std::int32_t>(draws.below(2 * pad + 1) - pad);
  augmentation.shift_y = static_cast<std::int32_t>(draws.below(2 * pad + 1) - pad);
}

std::int32_t least_side(std::int32_t side, double part, Dim size) {
  const double kept = static_cast<double>(size) / part;
  if (kept >= 1) return side;
  return std::min(side, static_cast<std::int32_t>(std::ceil(side * kept)));
}

}  // namespace

void append(const ops::ImageOperation& operation, ops::ImageAugmentation& augmentation) {
  require(augmentation.operation_count < ops::kMostImageOperations,
          "draw_augmentation: more operations than an image can have");
  augmentation.operations[augmentation.operation_count++] = operation;
}

ops::ImageAugmentation draw_augmentation(const AugmentConfig& config, std::uint64_t seed,
                                         std::uint64_t index, ImageSize source, ImageSize decoded,
                                         Dim size) {
  const Part part = training_part(config, seed, index, source, size);
  ops::ImageAugmentation out = augmentation_of(part, source, decoded, config.crop == Crop::center);
  if (config.crop == Crop::padded) draw_shift(config.pad, seed, index, out);
  out.flip = Draws(seed, "flip", index).chance(config.flip) ? 1 : 0;
  draw_jitter(config, seed, index, out);
  draw_policy(config, seed, index, size, out);
  out.erase = erased_box(config, seed, index, size);
  return out;
}

ops::ImageAugmentation validation_augmentation(const AugmentConfig& config, ImageSize source,
                                               ImageSize decoded, Dim size) {
  return augmentation_of(middle_part(config, source, size), source, decoded, true);
}

ImageSize least_decoded_size(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                             ImageSize source, Dim size, bool training) {
  const Part part = training ? training_part(config, seed, index, source, size)
                             : middle_part(config, source, size);
  return {.width = least_side(source.width, part.width, size),
          .height = least_side(source.height, part.height, size)};
}

}  // namespace hyperslab::image
