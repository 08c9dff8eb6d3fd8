// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hyperslab/image/augment_config.hpp"
#include "hyperslab/image/image_size.hpp"
#include "hyperslab/ops/image.hpp"

// The host draws all random numbers of an image here, in double: a pure function of the deck, the
// seed and the sample's place in the endless order of samples. No draw depends on the batch, the
// layout or the device, nor on the scale at which an image was decoded.

namespace hyperslab::image {

/// Draws the augmentation of training sample `index`, without mixing (draw_mixing). `source`: the
/// image in its file; `decoded`: the image that is augmented, perhaps smaller; `size`: rows and
/// columns of the result. In torchvision's order: crop, mirror, colour jitter, policy, erasing.
/// Throws an internal Error if more than ops::kMostImageOperations are asked for.
[[nodiscard]] ops::ImageAugmentation draw_augmentation(const AugmentConfig& config,
                                                       std::uint64_t seed, std::uint64_t index,
                                                       ImageSize source, ImageSize decoded,
                                                       Dim size);

/// The middle of the image whose shorter side is resized to floor(size / validation_crop), as
/// torchvision's Resize and CenterCrop; nothing else.
[[nodiscard]] ops::ImageAugmentation validation_augmentation(const AugmentConfig& config,
                                                             ImageSize source, ImageSize decoded,
                                                             Dim size);

/// One sample's mixing with another one.
struct Mixing {
  ops::ImageMix kind = ops::ImageMix::none;
  float weight = 1;           ///< weight of the own label; for cutmix its share of the area
  ops::ImageBox cut;          ///< box that cutmix takes from the partner
  std::uint64_t partner = 0;  ///< index of the other sample, unless the kind is none
};

/// Draws the mixing of sample `index`. Samples of a pair, or with MixMode::batch of a global batch
/// [k G, (k + 1) G) of G = `global_batch` samples, have equal draws but for the partner.
[[nodiscard]] Mixing draw_mixing(const AugmentConfig& config, std::uint64_t seed,
                                 std::uint64_t index, std::uint64_t global_batch, Dim size);

/// The least size to which the image may be decoded, so that the part that is trained on keeps at
/// least `size` pixels a side, or all that it has. At most `source`.
[[nodiscard]] ImageSize least_decoded_size(const AugmentConfig& config, std::uint64_t seed,
                                           std::uint64_t index, ImageSize source, Dim size,
                                           bool training);

}  // namespace hyperslab::image
