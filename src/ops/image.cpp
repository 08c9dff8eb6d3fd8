// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/image.hpp"

#include <algorithm>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"
#include "image_arithmetic.hpp"

namespace hyperslab::ops {
namespace {

void require_output(const ImageOutput& output) {
  require(output.size > 0 && output.patch > 0 && output.size % output.patch == 0,
          "augment_images output: the patch must divide the size");
  require(output.size <= kMostImageSize, "augment_images output: the size is beyond 4096 pixels");
  require(output.channels == 1 || output.channels == 3,
          "augment_images output: expected 1 or 3 channels");
}

}  // namespace

std::size_t augment_scratch_bytes(Dim B, const ImageOutput& output) {
  return static_cast<std::size_t>(2 * B * image_bytes(output.size));
}

void augment_images(Context& ctx, CView sources, CView augmentations, const ImageOutput& output,
                    View scratch, View patches) {
  require_output(output);
  require_here(ctx, patches, "augment_images patches");
  const Dim B = patches.dims<3>("augment_images patches")[0];
  const Dim side = output.size / output.patch;
  require_shape(patches, {B, side * side, output.channels * output.patch * output.patch},
                "augment_images patches");
  const Dim S = std::max(B, sources.numel() / Dim{sizeof(SourceImage)});
  require_count(ctx, sources, S * Dim{sizeof(SourceImage)}, DType::u8, "augment_images sources");
  require_count(ctx, augmentations, S * Dim{sizeof(ImageAugmentation)}, DType::u8,
                "augment_images augmentations");
  require_dtype(ctx, scratch, DType::u8, "augment_images scratch");
  require(scratch.bytes() >= augment_scratch_bytes(S, output),
          "augment_images scratch: too small; see augment_scratch_bytes");
  // A multiplication and an addition for each of about 2 x 3 taps of both passes.
  const double flops = 24.0 * static_cast<double>(S * image_bytes(output.size));
  if (on_meta(ctx, "augment_images", flops, {patches, scratch, sources, augmentations})) return;
  dispatch<cuda::augment_images, cpu::augment_images>(ctx, sources, augmentations, output, scratch,
                                                      patches);
}

}  // namespace hyperslab::ops
