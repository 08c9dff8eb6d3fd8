// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/image.hpp"

// The arithmetic of one pixel, for the CPU and the GPU: integers, and floats in a fixed order of
// operations. Sources that include this are compiled without merging products and sums.

namespace hyperslab::ops {

/// Rows or columns of an output image; sums of its weights and fixed-point places fit into 32 bits.
inline constexpr std::int64_t kMostImageSize = 4096;

struct Rgb {
  std::uint8_t at[3];
};

HS_HOST_DEVICE inline int clamped(int value, int least, int most) {
  return value < least ? least : value > most ? most : value;
}

// Resizing is along rows first, then along columns, with weights of 22 bits: a sum of 255 * weights
// stays below 2^31. Between the passes there are levels: the triangle's are rounded, as in
// Pillow (src/libImaging/Resample.c); the cubic's have a fraction and may lie outside of
// [0, 255], as in torchvision's tensors, where Pillow cuts off. The weights along columns have as
// many bits less as the fraction has.
inline constexpr int kWeightBits = 22;
HS_HOST_DEVICE inline int fraction_bits(bool bicubic) { return bicubic ? 2 : 0; }

/// The input pixels along one side that the filter of an output pixel reads.
struct ResizeAxis {
  double begin = 0;       ///< edge of the part, in input pixels
  double step = 1;        ///< input pixels an output pixel
  double squeeze = 1;     ///< 1 / stretch of the filter, where the image shrinks
  double support = 1;     ///< half width of the stretched filter
  int low = 0, high = 0;  ///< input pixels that may be read: [low, high)
  bool bicubic = false;
  int weight_bits = kWeightBits;
};

/// Part [begin, end) of a side of `pixels` input pixels, resized to `size`.
HS_HOST_DEVICE inline ResizeAxis resize_axis(double begin, double end, int pixels, int size,
                                             bool reads_beyond, bool bicubic) {
  ResizeAxis axis;
  axis.begin = begin;
  axis.step = (end - begin) / size;
  const double stretch = axis.step < 1.0 ? 1.0 : axis.step;
  axis.squeeze = 1.0 / stretch;
  axis.support = (bicubic ? 2.0 : 1.0) * stretch;
  axis.bicubic = bicubic;
  axis.high = pixels;
  if (!reads_beyond) {
    const int whole = static_cast<int>(end);
    axis.low = clamped(static_cast<int>(begin), 0, pixels - 1);
    axis.high = clamped(whole < end ? whole + 1 : whole, axis.low + 1, pixels);
  }
  return axis;
}

/// The axis of the second pass.
HS_HOST_DEVICE inline ResizeAxis along_columns(ResizeAxis axis) {
  axis.weight_bits = kWeightBits - fraction_bits(axis.bicubic);
  return axis;
}

/// The input of an output pixel: input pixels first to first + count.
struct Taps {
  int first;
  int count;
  double center;
  double sum;  ///< sum of the weights
};

/// The triangle, or the cubic convolution of Keys (1981) with a = -0.5.
HS_HOST_DEVICE inline double filter_at(double x, bool bicubic) {
  if (x < 0) x = -x;
  if (!bicubic) return x < 1.0 ? 1.0 - x : 0.0;
  constexpr double a = -0.5;
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

HS_HOST_DEVICE inline double raw_weight(const ResizeAxis& axis, const Taps& taps, int tap) {
  return filter_at((tap + taps.first - taps.center + 0.5) * axis.squeeze, axis.bicubic);
}

HS_HOST_DEVICE inline Taps taps_of(const ResizeAxis& axis, int output) {
  Taps taps{};
  taps.center = axis.begin + (output + 0.5) * axis.step;
  taps.first = clamped(static_cast<int>(taps.center - axis.support + 0.5), axis.low, axis.high - 1);
  const int end =
      clamped(static_cast<int>(taps.center + axis.support + 0.5), taps.first + 1, axis.high);
  taps.count = end - taps.first;
  for (int tap = 0; tap < taps.count; ++tap) taps.sum += raw_weight(axis, taps, tap);
  return taps;
}

/// In units of 2^-weight_bits, ties away from zero.
HS_HOST_DEVICE inline int tap_weight(const ResizeAxis& axis, const Taps& taps, int tap) {
  double weight = raw_weight(axis, taps, tap);
  if (taps.sum != 0.0) weight = weight / taps.sum;
  const double scaled = weight * (1 << axis.weight_bits);
  return static_cast<int>(weight < 0 ? scaled - 0.5 : scaled + 0.5);
}

/// A sum of weights times levels begins with this along rows, and becomes a level with a fraction.
HS_HOST_DEVICE inline int half_between(bool bicubic) {
  return 1 << (kWeightBits - fraction_bits(bicubic) - 1);
}
HS_HOST_DEVICE inline std::int16_t level_between(int sum, bool bicubic) {
  return static_cast<std::int16_t>(sum >> (kWeightBits - fraction_bits(bicubic)));
}
/// A sum along columns begins with this, and becomes a level of 8 bits.
inline constexpr int kHalfWeight = 1 << (kWeightBits - 1);
HS_HOST_DEVICE inline std::uint8_t to_level(int sum) {
  return static_cast<std::uint8_t>(clamped(sum >> kWeightBits, 0, 255));
}

/// Rec. 601 as Pillow: 16 bits, rounded.
HS_HOST_DEVICE inline int luma(Rgb pixel) {
  return (pixel.at[0] * 19595 + pixel.at[1] * 38470 + pixel.at[2] * 7471 + 0x8000) >> 16;
}

/// Pillow's Image.blend: from `from` at factor 0 to `to` at 1 and on beyond; cut off, not rounded.
HS_HOST_DEVICE inline std::uint8_t blend(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<std::uint8_t>(value <= 0.0F     ? 0
                                   : value >= 255.0F ? 255
                                                     : static_cast<int>(value));
}

HS_HOST_DEVICE inline Rgb blend(Rgb from, Rgb to, float factor) {
  Rgb out{};
  for (int c = 0; c < 3; ++c) out.at[c] = blend(from.at[c], to.at[c], factor);
  return out;
}

/// True if an operation's table depends on the histogram of each channel.
HS_HOST_DEVICE inline bool needs_histograms(ImageOperationKind kind) {
  return kind == ImageOperationKind::autocontrast || kind == ImageOperationKind::equalize;
}
HS_HOST_DEVICE inline bool needs_luma(ImageOperationKind kind) {
  return kind == ImageOperationKind::contrast;
}
/// True if a value's result depends on nothing else of its surroundings.
HS_HOST_DEVICE inline bool uses_table(ImageOperationKind kind) {
  return kind != ImageOperationKind::affine && kind != ImageOperationKind::saturation &&
         kind != ImageOperationKind::sharpness;
}

/// Pillow's ImageOps.autocontrast without a cutoff.
HS_HOST_DEVICE inline void autocontrast_table(const std::uint32_t* histogram, std::uint8_t* table) {
  int low = 0;
  int high = 255;
  while (low < 255 && histogram[low] == 0) ++low;
  while (high > 0 && histogram[high] == 0) --high;
  const bool stretches = high > low;
  const double scale = stretches ? 255.0 / (high - low) : 1.0;
  const double offset = stretches ? -low * scale : 0.0;
  for (int v = 0; v < 256; ++v) {
    table[v] = static_cast<std::uint8_t>(clamped(static_cast<int>(v * scale + offset), 0, 255));
  }
}

/// Pillow's ImageOps.equalize.
HS_HOST_DEVICE inline void equalize_table(const std::uint32_t* histogram, std::uint8_t* table) {
  std::uint32_t total = 0;
  std::uint32_t last = 0;
  for (int v = 0; v < 256; ++v) {
    total += histogram[v];
    if (histogram[v] > 0) last = histogram[v];
  }
  const std::uint32_t step = (total - last) / 255;
  std::uint32_t below = step / 2;
  for (int v = 0; v < 256; ++v) {
    const std::uint32_t level = step == 0 ? static_cast<std::uint32_t>(v) : below / step;
    table[v] = static_cast<std::uint8_t>(level > 255 ? 255 : level);
    below += histogram[v];
  }
}

/// Fills the new value of each of the 256 values of a channel. histogram: of the channel, if the
/// operation needs it; mean_luma likewise.
HS_HOST_DEVICE inline void fill_table(const ImageOperation& operation,
                                      const std::uint32_t* histogram, int mean_luma,
                                      std::uint8_t* table) {
  using enum ImageOperationKind;
  if (operation.kind == autocontrast) return autocontrast_table(histogram, table);
  if (operation.kind == equalize) return equalize_table(histogram, table);
  for (int v = 0; v < 256; ++v) {
    int level = v;
    if (operation.kind == brightness) level = blend(0, v, operation.factor);
    if (operation.kind == contrast) level = blend(mean_luma, v, operation.factor);
    if (operation.kind == posterize) level = v & (0xFF00 >> operation.level);
    if (operation.kind == solarize) level = v < operation.level ? v : 255 - v;
    if (operation.kind == invert) level = 255 - v;
    table[v] = static_cast<std::uint8_t>(level);
  }
}

/// The mean of `pixels` lumas with this sum, rounded.
HS_HOST_DEVICE inline int rounded_mean(std::uint64_t sum, std::uint64_t pixels) {
  return static_cast<int>((2 * sum + pixels) / (2 * pixels));
}

/// A square image of interleaved RGB.
struct SquareImage {
  const std::uint8_t* pixels;
  int size;
  [[nodiscard]] HS_HOST_DEVICE Rgb at(int x, int y) const {
    const std::uint8_t* pixel = pixels + (static_cast<std::int64_t>(y) * size + x) * 3;
    return {{pixel[0], pixel[1], pixel[2]}};
  }
};

HS_HOST_DEVICE inline Rgb affine_pixel(const SquareImage& image, const ImageOperation& operation,
                                       int x, int y) {
  const std::int32_t* m = operation.matrix;
  const std::int64_t column = (std::int64_t{m[0]} * x + std::int64_t{m[1]} * y + m[2]) >> 16;
  const std::int64_t row = (std::int64_t{m[3]} * x + std::int64_t{m[4]} * y + m[5]) >> 16;
  if (column < 0 || column >= image.size || row < 0 || row >= image.size) {
    const auto fill = static_cast<std::uint8_t>(operation.level);
    return {{fill, fill, fill}};
  }
  return image.at(static_cast<int>(column), static_cast<int>(row));
}

/// Pillow's SMOOTH: the mean of 3 x 3 pixels, the middle one counted five times, rounded; pixels of
/// the edge stay.
HS_HOST_DEVICE inline Rgb smooth_pixel(const SquareImage& image, int x, int y) {
  const Rgb middle = image.at(x, y);
  if (x == 0 || y == 0 || x == image.size - 1 || y == image.size - 1) return middle;
  int sums[3] = {4 * middle.at[0], 4 * middle.at[1], 4 * middle.at[2]};
  for (int j = -1; j <= 1; ++j) {
    for (int i = -1; i <= 1; ++i) {
      const Rgb pixel = image.at(x + i, y + j);
      for (int c = 0; c < 3; ++c) sums[c] += pixel.at[c];
    }
  }
  Rgb out{};
  for (int c = 0; c < 3; ++c) out.at[c] = static_cast<std::uint8_t>((2 * sums[c] + 13) / 26);
  return out;
}

/// Pixel (x, y) after the operation. tables: of the three channels, if it uses them.
HS_HOST_DEVICE inline Rgb operation_pixel(const ImageOperation& operation,
                                          const std::uint8_t (*tables)[256],
                                          const SquareImage& image, int x, int y) {
  using enum ImageOperationKind;
  if (operation.kind == affine) return affine_pixel(image, operation, x, y);
  const Rgb pixel = image.at(x, y);
  if (operation.kind == saturation) {
    const auto grey = static_cast<std::uint8_t>(luma(pixel));
    return blend({{grey, grey, grey}}, pixel, operation.factor);
  }
  if (operation.kind == sharpness) {
    return blend(smooth_pixel(image, x, y), pixel, operation.factor);
  }
  return {{tables[0][pixel.at[0]], tables[1][pixel.at[1]], tables[2][pixel.at[2]]}};
}

HS_HOST_DEVICE inline bool inside(const ImageBox& box, int x, int y) {
  return x >= box.left && x < box.left + box.width && y >= box.top && y < box.top + box.height;
}

/// A level v of channel c is normalized to v * scale[c] + shift[c].
struct Normalization {
  float scale[3];
  float shift[3];
};

[[nodiscard]] inline Normalization normalization_of(const ImageOutput& output) {
  Normalization out{};
  for (std::size_t c = 0; c < 3; ++c) {
    const double deviation = output.deviation[c];
    out.scale[c] = static_cast<float>(1.0 / (255.0 * deviation));
    out.shift[c] = static_cast<float>(-output.mean[c] / deviation);
  }
  return out;
}

/// Pixel (x, y) of one image, normalized and erased: `channels` numbers.
HS_HOST_DEVICE inline void normalize_pixel(Rgb pixel, bool erased,
                                           const Normalization& normalization, int channels,
                                           float* out) {
  if (channels == 1) pixel.at[0] = static_cast<std::uint8_t>(luma(pixel));
  for (int c = 0; c < channels; ++c) {
    const auto level = static_cast<float>(pixel.at[c]);
    out[c] = erased ? 0.0F : level * normalization.scale[c] + normalization.shift[c];
  }
}

/// Pixel (x, y), normalized, erased and mixed with the partner's, which has an augmentation of its
/// own: `channels` numbers.
HS_HOST_DEVICE inline void finish_pixel(const ImageAugmentation& augmentation,
                                        const ImageBox& partner_erase, Rgb own, Rgb partner,
                                        const Normalization& normalization, int channels, int x,
                                        int y, float* out) {
  const bool cut = augmentation.mix == ImageMix::cutmix && inside(augmentation.cut, x, y);
  normalize_pixel(cut ? partner : own, inside(cut ? partner_erase : augmentation.erase, x, y),
                  normalization, channels, out);
  if (augmentation.mix != ImageMix::mixup) return;
  float other[3] = {};
  normalize_pixel(partner, inside(partner_erase, x, y), normalization, channels, other);
  for (int c = 0; c < channels; ++c) {
    out[c] = augmentation.weight * out[c] + (1.0F - augmentation.weight) * other[c];
  }
}

/// Images in scratch: each has two slots, between which its operations alternate.
HS_HOST_DEVICE inline std::int64_t image_bytes(std::int64_t size) { return size * size * 3; }
HS_HOST_DEVICE inline std::int64_t slot_of(std::int64_t image, int operations, std::int64_t size) {
  return (2 * image + operations % 2) * image_bytes(size);
}
/// The image that b of S is mixed with; itself if there is none.
HS_HOST_DEVICE inline std::int64_t partner_of(std::int64_t b, std::int64_t S,
                                              const ImageAugmentation& augmentation) {
  const std::int64_t partner = augmentation.partner;
  return augmentation.mix == ImageMix::none || partner < 0 || partner >= S ? b : partner;
}

}  // namespace hyperslab::ops
