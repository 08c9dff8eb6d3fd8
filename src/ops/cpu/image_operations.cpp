// SPDX-License-Identifier: Apache-2.0
#include "image_stages.hpp"

namespace hyperslab::ops::cpu {
namespace {

struct Statistics {
  std::uint32_t histograms[3][256] = {};
  int mean_luma = 0;
};

Statistics statistics_of(ImageOperationKind kind, const SquareImage& image) {
  Statistics out;
  if (!needs_histograms(kind) && !needs_luma(kind)) return out;
  const std::int64_t pixels = std::int64_t{image.size} * image.size;
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < pixels; ++i) {
    const std::uint8_t* pixel = image.pixels + i * 3;
    for (int c = 0; c < 3; ++c) ++out.histograms[c][pixel[c]];
    sum += static_cast<std::uint64_t>(luma({{pixel[0], pixel[1], pixel[2]}}));
  }
  out.mean_luma = rounded_mean(sum, static_cast<std::uint64_t>(pixels));
  return out;
}

}  // namespace

void operate_on_image(const ImageOperation& operation, const SquareImage& image,
                      std::uint8_t* out) {
  std::uint8_t tables[3][256];
  if (uses_table(operation.kind)) {
    const Statistics statistics = statistics_of(operation.kind, image);
    for (int c = 0; c < 3; ++c) {
      fill_table(operation, statistics.histograms[c], statistics.mean_luma, tables[c]);
    }
  }
  for (int y = 0; y < image.size; ++y) {
    for (int x = 0; x < image.size; ++x, out += 3) {
      const Rgb pixel = operation_pixel(operation, tables, image, x, y);
      for (int c = 0; c < 3; ++c) out[c] = pixel.at[c];
    }
  }
}

}  // namespace hyperslab::ops::cpu
