// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <optional>
#include <vector>

#include "hyperslab/ops/image.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// Levels of an image on the CPU: (height, width, 3).
struct Picture {
  std::int32_t width = 0, height = 0;
  std::vector<std::uint8_t> levels;

  [[nodiscard]] ops::SourceImage source() const {
    return {levels.data(), width, height, std::int64_t{width} * 3};
  }
};

/// The picture that tests/golden/images.py draws too.
[[nodiscard]] inline Picture drawn_picture(std::int32_t width, std::int32_t height,
                                           int contrast_percent = 100, int seed = 0) {
  Picture out{width, height, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int level = (x * 37 + y * 101 + c * 59 + x * y % 23 * 11 + seed * 90) % 256;
        const int scaled = (level - 128) * contrast_percent;
        const int floored = scaled >= 0 ? scaled / 100 : -((99 - scaled) / 100);
        out.levels.push_back(static_cast<std::uint8_t>(128 + floored));
      }
    }
  }
  return out;
}

/// The whole picture, resized and no more.
[[nodiscard]] inline ops::ImageAugmentation whole_picture(const Picture& picture) {
  ops::ImageAugmentation out;
  out.right = picture.width;
  out.bottom = picture.height;
  return out;
}

/// Levels 0 to 255 come out as they are.
[[nodiscard]] inline ops::ImageOutput plain_output(Dim size, Dim patch, Dim channels = 3) {
  constexpr float kUnit = 1.0F / 255;
  return {.size = size,
          .patch = patch,
          .channels = channels,
          .mean = {0, 0, 0},
          .deviation = {kUnit, kUnit, kUnit}};
}

/// Structs as the op takes them.
template <class Struct>
[[nodiscard]] Tensor struct_tensor(const std::vector<Struct>& values) {
  Tensor out(Device::cpu, DType::u8, {static_cast<Dim>(values.size() * sizeof(Struct))});
  if (!values.empty()) std::memcpy(out.view().raw(), values.data(), values.size() * sizeof(Struct));
  return out;
}

[[nodiscard]] inline Shape patches_shape(Dim B, const ops::ImageOutput& output) {
  const Dim side = output.size / output.patch;
  return {B, side * side, output.channels * output.patch * output.patch};
}

/// The op on the CPU. The first `count` pictures get patches; the others are partners alone.
[[nodiscard]] inline Tensor augmented(Context& ctx, const std::vector<Picture>& pictures,
                                      const std::vector<ops::ImageAugmentation>& augmentations,
                                      const ops::ImageOutput& output, DType dtype = DType::f32,
                                      std::optional<Dim> count = {}) {
  std::vector<ops::SourceImage> sources;
  for (const Picture& picture : pictures) sources.push_back(picture.source());
  const auto S = static_cast<Dim>(pictures.size());
  Tensor scratch(Device::cpu, DType::u8, {static_cast<Dim>(ops::augment_scratch_bytes(S, output))});
  Tensor patches = filled_tensor(dtype, patches_shape(count.value_or(S), output), -1e3);
  ops::augment_images(ctx, struct_tensor(sources).view(), struct_tensor(augmentations).view(),
                      output, scratch.view(), patches.view());
  return patches;
}

}  // namespace hyperslab::test
