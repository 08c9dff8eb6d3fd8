// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace hyperslab::image {

/// Choice of the part of an image that is trained on. `resized`: a random part, by area and
/// aspect ratio (Szegedy et al. 2015); `padded`: a random window of the image with a margin of
/// zeros; `center`: as for validation.
enum class Crop : std::uint8_t { resized, padded, center };

enum class Interpolation : std::uint8_t { bilinear, bicubic };

/// Further operations that change an image: RandAugment (Cubuk et al. 2020) or the policies that
/// AutoAugment (Cubuk et al. 2019) found on CIFAR-10 and on ImageNet.
enum class Policy : std::uint8_t { none, randaugment, autoaugment_cifar10, autoaugment_imagenet };

/// Samples that share a draw of mixing. `pair`: 2k and 2k + 1, which are mixed with each other;
/// `batch`: all of a global batch, each of which is mixed with another by a random permutation.
enum class MixMode : std::uint8_t { pair, batch };

/// Deck section `augment`: the way of an image from its file to its patches. Validation
/// resizes the shorter side to size / validation_crop and takes the middle.
struct AugmentConfig {
  /// Samples in a row of the order that are one image, each augmented on its own (Hoffer et al.
  /// 2020; Berman et al. 2019).
  std::int64_t repeats = 1;
  Crop crop = Crop::resized;
  std::array<double, 2> scale = {0.08, 1};        ///< for `resized`: shares of the image's area
  std::array<double, 2> ratio = {0.75, 4.0 / 3};  ///< for `resized`: width / height
  std::int64_t pad = 4;                           ///< for `padded`: pixels of the margin
  Interpolation interpolation = Interpolation::bilinear;
  double validation_crop = 0.875;
  double flip = 0.5;  ///< probability of a mirror image
  Policy policy = Policy::none;
  std::int64_t policy_operations = 2;  ///< operations of randaugment, one after the other
  std::int64_t policy_magnitude = 9;   ///< strength of randaugment: 0 to 30
  std::int64_t policy_fill = 0;        ///< level of pixels that shifts, shears and rotations add
  double brightness = 0;               ///< largest relative change, as torchvision's ColorJitter
  double contrast = 0;
  double saturation = 0;
  double mixup = 0;   ///< alpha of Beta(alpha, alpha) (Zhang et al. 2018); 0: none
  double cutmix = 0;  ///< alpha of CutMix (Yun et al. 2019); 0: none
  double mix = 1;     ///< probability that the samples of a draw are mixed
  MixMode mix_mode = MixMode::pair;
  double mix_switch = 0.5;  ///< probability of cutmix where both are given
  double erase = 0;         ///< probability of random erasing (Zhong et al. 2020)
  std::array<double, 2> erase_area = {0.02, 0.33};     ///< shares of the image's area
  std::array<double, 2> erase_ratio = {0.3, 3.3};      ///< height / width
  std::array<double, 3> mean = {0.485, 0.456, 0.406};  ///< mean of the channels, in [0, 1]
  std::array<double, 3> deviation = {0.229, 0.224, 0.225};
  [[nodiscard]] bool mixes() const { return mix > 0 && (mixup > 0 || cutmix > 0); }
  friend bool operator==(const AugmentConfig&, const AugmentConfig&) = default;
};

}  // namespace hyperslab::image
