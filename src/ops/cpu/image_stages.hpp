// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../image_arithmetic.hpp"

namespace hyperslab::ops::cpu {

/// The part of the image, resized, shifted and mirrored. out: (size, size, 3).
void resize_image(const SourceImage& source, const ImageAugmentation& augmentation,
                  const ImageOutput& output, std::uint8_t* out);

/// The operation on a square image. out: another slot of that size.
void operate_on_image(const ImageOperation& operation, const SquareImage& image, std::uint8_t* out);

}  // namespace hyperslab::ops::cpu
