// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/image/augment.hpp"

namespace hyperslab::image {

/// A part of an image in pixels of its file.
struct Part {
  double left = 0, top = 0, width = 0, height = 0;
};

/// torchvision's RandomResizedCrop.get_params: ten tries, then the middle of the nearest ratio.
[[nodiscard]] Part random_part(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                               ImageSize source);
/// The part that CenterCrop(size) keeps of the image whose shorter side is floor(size /
/// validation_crop).
[[nodiscard]] Part middle_part(const AugmentConfig& config, ImageSize source, Dim size);

/// Appends the operations that colour jitter and the policy draw.
void draw_jitter(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                 ops::ImageAugmentation& augmentation);
void draw_policy(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index, Dim size,
                 ops::ImageAugmentation& augmentation);
/// Throws an internal Error if the list is full.
void append(const ops::ImageOperation& operation, ops::ImageAugmentation& augmentation);

}  // namespace hyperslab::image
