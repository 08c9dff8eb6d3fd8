// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/image.hpp"

namespace hyperslab::ops::cuda {

/// A batch as kernels see it; all pointers are of the device.
struct ImageBatch {
  const SourceImage* sources;
  const ImageAugmentation* augmentations;
  std::uint8_t* scratch;
  Dim count;
  int size;
  bool bicubic;
};

/// Sources to the first slots of scratch. Enqueues on ctx.
void resize_images(Context& ctx, const ImageBatch& batch);
/// The operations of every image, from slot to slot. Enqueues on ctx.
void operate_on_images(Context& ctx, const ImageBatch& batch);

}  // namespace hyperslab::ops::cuda
