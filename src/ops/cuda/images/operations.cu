// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction, for the bits of the CPU.
#include "cuda/tools/common.cuh"
#include "image_arithmetic.hpp"
#include "stages.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kThreads = 1024;

struct Statistics {
  std::uint32_t histograms[3][256];
  unsigned long long luma;
  std::uint8_t tables[3][256];
};

__device__ void count_levels(const SquareImage& image, bool histograms, Statistics& statistics) {
  unsigned long long sum = 0;
  const int pixels = image.size * image.size;
  for (int i = static_cast<int>(threadIdx.x); i < pixels; i += kThreads) {
    const std::uint8_t* pixel = image.pixels + Dim{i} * 3;
    sum += static_cast<unsigned>(luma({{pixel[0], pixel[1], pixel[2]}}));
    if (!histograms) continue;
#pragma unroll
    for (int c = 0; c < 3; ++c) atomicAdd(&statistics.histograms[c][pixel[c]], 1U);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(&statistics.luma, sum);
}

/// For operations by a table: counts levels if it needs them, and fills the three channels' tables.
__device__ void prepare(const ImageOperation& operation, const SquareImage& image,
                        Statistics& statistics) {
  const bool histograms = needs_histograms(operation.kind);
  if (histograms || needs_luma(operation.kind)) {
    for (int i = static_cast<int>(threadIdx.x); i < 3 * 256; i += kThreads) {
      statistics.histograms[i / 256][i % 256] = 0;
    }
    if (threadIdx.x == 0) statistics.luma = 0;
    __syncthreads();
    count_levels(image, histograms, statistics);
    __syncthreads();
  }
  // A thread of three warps fills a table each.
  if (threadIdx.x % 32 == 0 && threadIdx.x < 96) {
    const int c = static_cast<int>(threadIdx.x) / 32;
    const auto pixels = static_cast<std::uint64_t>(image.size) * image.size;
    const int mean = needs_luma(operation.kind) ? rounded_mean(statistics.luma, pixels) : 0;
    fill_table(operation, statistics.histograms[c], mean, statistics.tables[c]);
  }
}

/// A block an image, which ends at once if nothing is to be done.
__global__ void __launch_bounds__(kThreads) operate_on_images_kernel(ImageBatch batch) {
  __shared__ Statistics statistics;
  const Dim b = blockIdx.x;
  const int count = batch.augmentations[b].operation_count;
  const int pixels = batch.size * batch.size;
  for (int k = 0; k < count; ++k) {
    const ImageOperation operation = batch.augmentations[b].operations[k];
    const SquareImage image = {batch.scratch + slot_of(b, k, batch.size), batch.size};
    std::uint8_t* out = batch.scratch + slot_of(b, k + 1, batch.size);
    if (uses_table(operation.kind)) prepare(operation, image, statistics);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < pixels; i += kThreads) {
      const Rgb pixel =
          operation_pixel(operation, statistics.tables, image, i % batch.size, i / batch.size);
#pragma unroll
      for (int c = 0; c < 3; ++c) out[Dim{i} * 3 + c] = pixel.at[c];
    }
    __syncthreads();
  }
}

}  // namespace

void operate_on_images(Context& ctx, const ImageBatch& batch) {
  operate_on_images_kernel<<<static_cast<unsigned>(batch.count), kThreads, 0,
                             ctx.stream().cuda()>>>(batch);
  check_launch("augment_images");
}

}  // namespace hyperslab::ops::cuda
