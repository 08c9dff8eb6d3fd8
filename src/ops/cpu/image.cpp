// SPDX-License-Identifier: Apache-2.0
#include "../backend.hpp"
#include "image_stages.hpp"
#include "parallel.hpp"
#include "quantized_codes.hpp"

namespace hyperslab::ops::cpu {
namespace {

struct Images {
  std::span<const SourceImage> sources;
  std::span<const ImageAugmentation> augmentations;
  const ImageOutput* output;
  std::uint8_t* scratch;

  [[nodiscard]] Dim count() const { return static_cast<Dim>(sources.size()); }
  [[nodiscard]] const ImageAugmentation& of(Dim b) const {
    return augmentations[static_cast<std::size_t>(b)];
  }
  [[nodiscard]] std::uint8_t* slot(Dim b, int operations) const {
    return scratch + slot_of(b, operations, output->size);
  }
  [[nodiscard]] SquareImage finished(Dim b) const {
    return {slot(b, of(b).operation_count), static_cast<int>(output->size)};
  }
};

void require_image(const SourceImage& source, const ImageAugmentation& augmentation) {
  require(source.pixels != nullptr && source.width > 0 && source.height > 0,
          "augment_images sources: an image has no pixels");
  require(augmentation.right > augmentation.left && augmentation.bottom > augmentation.top,
          "augment_images augmentations: a part to resize is empty");
  require(augmentation.operation_count >= 0 && augmentation.operation_count <= kMostImageOperations,
          "augment_images augmentations: an image has too many operations");
}

void change_image(const Images& images, Dim b) {
  const ImageAugmentation& augmentation = images.of(b);
  resize_image(images.sources[static_cast<std::size_t>(b)], augmentation, *images.output,
               images.slot(b, 0));
  for (int i = 0; i < augmentation.operation_count; ++i) {
    operate_on_image(augmentation.operations[i],
                     {images.slot(b, i), static_cast<int>(images.output->size)},
                     images.slot(b, i + 1));
  }
}

/// Calls pixel(x, y, values) for every pixel, row by row, and puts its values into the patches.
template <class T, class Pixel>
void fill_patches(const ImageOutput& output, T* patches, Pixel&& pixel) {
  const Dim side = output.size / output.patch;
  const Dim area = output.patch * output.patch;
  for (Dim y = 0; y < output.size; ++y) {
    for (Dim column = 0; column < side; ++column) {
      const Dim patch = y / output.patch * side + column;
      T* to = patches + patch * output.channels * area + y % output.patch * output.patch;
      for (Dim i = 0; i < output.patch; ++i) {
        T values[3] = {};
        pixel(static_cast<int>(column * output.patch + i), static_cast<int>(y), values);
        for (Dim c = 0; c < output.channels; ++c) to[c * area + i] = values[c];
      }
    }
  }
}

/// The new level of each level of each channel.
template <class T>
struct Levels {
  explicit Levels(const Normalization& normalization) {
    for (int v = 0; v < 256; ++v) {
      const auto level = static_cast<std::uint8_t>(v);
      float values[3];
      normalize_pixel({{level, level, level}}, false, normalization, 3, values);
      for (int c = 0; c < 3; ++c) table[c][v] = from_single<T>(values[c]);
    }
  }
  T table[3][256];
};

/// patches: (N, P) of image b.
template <class T>
void finish_image(const Images& images, Dim b, const Normalization& normalization,
                  const Levels<T>& levels, T* patches) {
  const ImageAugmentation& augmentation = images.of(b);
  const SquareImage own = images.finished(b);
  const Dim other = partner_of(b, images.count(), augmentation);
  const SquareImage partner = images.finished(other);
  const ImageBox partner_erase = images.of(other).erase;
  const int channels = static_cast<int>(images.output->channels);
  if (augmentation.mix == ImageMix::mixup) {
    return fill_patches(*images.output, patches, [&](int x, int y, T* out) {
      float values[3];
      finish_pixel(augmentation, partner_erase, own.at(x, y), partner.at(x, y), normalization,
                   channels, x, y, values);
      for (int c = 0; c < channels; ++c) out[c] = from_single<T>(values[c]);
    });
  }
  const ImageBox cut = augmentation.mix == ImageMix::cutmix ? augmentation.cut : ImageBox();
  const ImageBox erase = augmentation.erase;
  fill_patches(*images.output, patches, [&](int x, int y, T* out) {
    const bool taken = inside(cut, x, y);
    Rgb pixel = taken ? partner.at(x, y) : own.at(x, y);
    if (channels == 1) pixel.at[0] = static_cast<std::uint8_t>(luma(pixel));
    const bool erased = inside(taken ? partner_erase : erase, x, y);
    for (int c = 0; c < channels; ++c) out[c] = erased ? T() : levels.table[c][pixel.at[c]];
  });
}

}  // namespace

void augment_images(Context& ctx, CView sources, CView augmentations, const ImageOutput& output,
                    View scratch, View patches) {
  const Dim B = patches.shape()[0];
  const std::size_t S = sources.bytes() / sizeof(SourceImage);
  const Images images = {{static_cast<const SourceImage*>(sources.raw()), S},
                         {static_cast<const ImageAugmentation*>(augmentations.raw()), S},
                         &output,
                         scratch.data<std::uint8_t>()};
  for (std::size_t b = 0; b < S; ++b) require_image(images.sources[b], images.augmentations[b]);
  const Dim work = image_bytes(output.size);
  parallel_chunks(ctx.threads(), images.count(), work, [&](int, Dim begin, Dim end) {
    for (Dim b = begin; b < end; ++b) change_image(images, b);
  });
  const Normalization normalization = normalization_of(output);
  with_floating(patches.dtype(), "augment_images", [&]<class T>(T) {
    const Dim values = patches.shape()[1] * patches.shape()[2];
    const Levels<T> levels(normalization);
    parallel_chunks(ctx.threads(), B, work, [&](int, Dim begin, Dim end) {
      for (Dim b = begin; b < end; ++b) {
        finish_image(images, b, normalization, levels, patches.data<T>() + b * values);
      }
    });
  });
}

}  // namespace hyperslab::ops::cpu
