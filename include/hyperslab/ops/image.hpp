// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hyperslab/core/context.hpp"
#include "hyperslab/core/view.hpp"

namespace hyperslab::ops {

/// A decoded image in memory of the device: interleaved 8-bit RGB, row by row.
struct SourceImage {
  const std::uint8_t* pixels = nullptr;
  std::int32_t width = 0, height = 0;
  std::int64_t row_bytes = 0;  ///< from a row to the next
};

/// An operation on an 8-bit RGB image, equal to the bit to torchvision's functional of the same
/// name on Pillow's images.
enum class ImageOperationKind : std::int32_t {
  affine,        ///< `matrix`; nearest pixel, outside all channels are `level`
  brightness,    ///< blend with black, by `factor`: 0 black, 1 as it was
  contrast,      ///< blend with the mean of the luma, by `factor`
  saturation,    ///< blend with the luma, by `factor`
  sharpness,     ///< blend with the image smoothed by 3 x 3, by `factor`
  posterize,     ///< keeps the upper `level` bits of a value
  solarize,      ///< inverts values from `level` on
  autocontrast,  ///< stretches each channel to [0, 255]
  equalize,      ///< flattens each channel's histogram
  invert
};

/// One operation. Integers alone decide which pixel is read, so every device reads the same.
struct ImageOperation {
  ImageOperationKind kind = ImageOperationKind::invert;
  float factor = 1;
  std::int32_t level = 0;
  /// For output pixel (x, y) the input's column is (m[0] x + m[1] y + m[2]) >> 16 and its row (m[3]
  /// x + m[4] y + m[5]) >> 16: fixed point 16.16, the half pixels contained.
  std::int32_t matrix[6] = {};
};

/// Pixels of an output image; empty if the width or height is 0.
struct ImageBox {
  std::int32_t left = 0, top = 0, width = 0, height = 0;
};

enum class ImageMix : std::int32_t { none, mixup, cutmix };

/// Operations of one image at most: three of colour jitter and eight of a policy.
inline constexpr int kMostImageOperations = 11;

/// The augmentation of one image: host code draws it, kernels follow it.
struct ImageAugmentation {
  /// The part that is resized to size x size, in pixels of the decoded image; edges may lie between
  /// pixels.
  double left = 0, top = 0, right = 0, bottom = 0;
  /// Nonzero if filters read pixels beyond the part: for an image that is resized and then cropped,
  /// not for one that is cropped first.
  std::int32_t reads_beyond = 0;
  /// Output pixel (x, y) is pixel (x + shift_x, y + shift_y) of the resized one, or zero outside.
  std::int32_t shift_x = 0, shift_y = 0;
  std::int32_t flip = 0;  ///< 1: mirrored left to right, after the shift
  std::int32_t operation_count = 0;
  ImageOperation operations[kMostImageOperations] = {};  ///< one after the other
  ImageMix mix = ImageMix::none;
  std::int32_t partner = -1;  ///< the image of the batch that it is mixed with; -1: none
  float weight = 1;           ///< share of the image itself in mixup
  ImageBox cut;               ///< pixels that cutmix takes from the partner
  ImageBox erase;             ///< becomes 0 after normalization, before it is mixed
};
static_assert(std::is_trivially_copyable_v<SourceImage> &&
              std::is_trivially_copyable_v<ImageAugmentation>);

/// The output of images, alike for all images of a batch.
struct ImageOutput {
  Dim size = 224;    ///< rows and columns
  Dim patch = 16;    ///< rows and columns; divides `size`
  Dim channels = 3;  ///< 3, or 1: the luma of Rec. 601 as Pillow rounds it
  std::array<float, 3> mean = {0.485F, 0.456F, 0.406F};       ///< means of the channels in [0, 1]
  std::array<float, 3> deviation = {0.229F, 0.224F, 0.225F};  ///< their standard deviations
  bool bicubic = false;                                       ///< else bilinear
};

/// Bytes of `scratch` that augment_images needs for B images, on every device.
[[nodiscard]] std::size_t augment_scratch_bytes(Dim B, const ImageOutput& output);

/// Decoded images to normalized patches: crop and antialiased resize to size x size (within a level
/// of torchvision's; the bicubic filter has a = -0.5), shift, flip, operations, normalization
/// (v / 255 - mean) / deviation, erasing, mixing with the partner, patches. Everything up to
/// normalization has equal bits on every device, the rest the rounding of f32.
/// sources, augmentations: (S * sizeof(SourceImage or ImageAugmentation)) u8, the structs in memory
/// of the device; images b >= B, if S > B, are partners alone. scratch: u8, at least
/// augment_scratch_bytes(S), not kept; patches: (B, N, P) in f32, bf16 or f16 with
/// N = (size / patch)^2 in rows of the image and P = channels * patch^2 in the order (channel, row,
/// column). Throws an internal Error for shapes that disagree. Enqueues on ctx; the images must
/// live until the stream has passed.
void augment_images(Context& ctx, CView sources, CView augmentations, const ImageOutput& output,
                    View scratch, View patches);

}  // namespace hyperslab::ops
