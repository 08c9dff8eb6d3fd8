// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction, for the bits of the CPU.
//
// Memory traffic of the three kernels an image, in bytes, with S the size: the part of the source
// (about once; neighboring tiles find the rows they share in the L2 cache), 3 S^2 written; 6 S^2
// each operation; 3 S^2 read (6 if mixed) and 3 S^2 elements written. 256 images of 500 x 375 at
// 224 in bf16: 144 + 39 + 39 + 77 MB, of which the images between the kernels fit the L2 cache.
#include "cuda/tools/common.cuh"
#include "image_arithmetic.hpp"
#include "stages.hpp"

namespace hyperslab::ops::cuda {
namespace {

struct PatchLayout {
  int patch;
  int side;  ///< patches in a row of the image
  Dim images;
  int channels;
};

/// V neighboring pixels of a finished image.
template <int V>
struct Run {
  Vec<std::uint8_t, V> parts[3];
  __device__ Rgb at(int i) const {
    Rgb out{};
#pragma unroll
    for (int c = 0; c < 3; ++c) out.at[c] = parts[(i * 3 + c) / V].at[(i * 3 + c) % V];
    return out;
  }
};

template <int V>
__device__ Run<V> load_run(const ImageBatch& batch, Dim b, int x, int y) {
  const std::uint8_t* from = batch.scratch +
                             slot_of(b, batch.augmentations[b].operation_count, batch.size) +
                             (Dim{y} * batch.size + x) * 3;
  Run<V> run;
#pragma unroll
  for (int part = 0; part < 3; ++part) run.parts[part] = load_raw<V>(from + part * V);
  return run;
}

/// A thread makes V neighboring pixels of a row of a patch in all channels. Threads go through the
/// rows of a patch first, so that a warp's stores lie side by side.
template <int V, class T>
__global__ void __launch_bounds__(256)
    finish_images_kernel(ImageBatch batch, Normalization normalization, PatchLayout layout,
                         T* patches) {
  const int runs = layout.patch / V;  // runs in a row of a patch
  const Dim run = static_cast<Dim>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Dim row = run / runs;
  const Dim patch = row / layout.patch;  // index in the whole batch
  const int patches_each = layout.side * layout.side;
  const Dim b = patch / patches_each;
  if (b >= layout.images) return;
  const int column_in_patch = static_cast<int>(run % runs) * V;
  const int row_in_patch = static_cast<int>(row % layout.patch);
  const int which = static_cast<int>(patch % patches_each);
  const int x = which % layout.side * layout.patch + column_in_patch;
  const int y = which / layout.side * layout.patch + row_in_patch;

  const ImageAugmentation& augmentation = batch.augmentations[b];
  const Dim other = partner_of(b, batch.count, augmentation);
  const Run<V> own = load_run<V>(batch, b, x, y);
  const ImageBox partner_erase = batch.augmentations[other].erase;
  Run<V> partner = own;
  if (other != b) partner = load_run<V>(batch, other, x, y);
  float values[3][V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float pixel[3] = {};
    finish_pixel(augmentation, partner_erase, own.at(i), partner.at(i), normalization,
                 layout.channels, x + i, y, pixel);
#pragma unroll
    for (int c = 0; c < 3; ++c) values[c][i] = pixel[c];
  }
  const Dim area = Dim{layout.patch} * layout.patch;
  T* to = patches + patch * layout.channels * area + row_in_patch * layout.patch + column_in_patch;
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    if (c < layout.channels) store<V>(to + c * area, values[c]);
  }
}

template <int V, class T>
void finish_images(Context& ctx, const ImageBatch& batch, const ImageOutput& output, Dim images,
                   T* patches) {
  const PatchLayout layout = {static_cast<int>(output.patch),
                              static_cast<int>(output.size / output.patch), images,
                              static_cast<int>(output.channels)};
  const Dim runs = images * output.size * (output.size / V);
  finish_images_kernel<V>
      <<<static_cast<unsigned>(ceil_divide(runs, 256)), 256, 0, ctx.stream().cuda()>>>(
          batch, normalization_of(output), layout, patches);
  check_launch("augment_images");
}

}  // namespace

void augment_images(Context& ctx, CView sources, CView augmentations, const ImageOutput& output,
                    View scratch, View patches) {
  const ImageBatch batch = {static_cast<const SourceImage*>(sources.raw()),
                            static_cast<const ImageAugmentation*>(augmentations.raw()),
                            scratch.data<std::uint8_t>(),
                            static_cast<Dim>(sources.bytes() / sizeof(SourceImage)),
                            static_cast<int>(output.size),
                            output.bicubic};
  const Dim B = patches.shape()[0];
  if (B == 0) return;
  resize_images(ctx, batch);
  operate_on_images(ctx, batch);
  with_element(patches.dtype(), "augment_images", [&]<class T>(T) {
    const bool wide = aligned(batch.scratch, patches.raw());
    if (wide && output.patch % 8 == 0) {
      return finish_images<8>(ctx, batch, output, B, patches.data<T>());
    }
    if (wide && output.patch % 4 == 0) {
      return finish_images<4>(ctx, batch, output, B, patches.data<T>());
    }
    finish_images<1>(ctx, batch, output, B, patches.data<T>());
  });
}

}  // namespace hyperslab::ops::cuda
