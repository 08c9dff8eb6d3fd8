// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction, for the bits of the CPU.
#include "cuda/tools/common.cuh"
#include "image_arithmetic.hpp"
#include "stages.hpp"

namespace hyperslab::ops::cuda {
namespace {

// A block makes a tile of an output image. It takes a chunk of input rows at a time, resizes these
// rows to its columns in shared memory, and adds them to the output rows that read them. So memory
// of the device is read once a tile and written once, however much an image shrinks.
constexpr int kTileColumns = 32;
constexpr int kTileRows = 16;
constexpr int kChunkRows = 32;
constexpr int kThreads = 256;
constexpr int kRowValues = kTileColumns * 3;
constexpr int kValues = kTileRows * kRowValues / kThreads;  // values of a thread
constexpr int kStoredTaps = 32;                             // further weights are computed again

/// The input pixels, and their weights, of N neighboring output pixels along one side.
template <int N>
struct TileTaps {
  ResizeAxis axis;
  Taps taps[N];
  int weights[kStoredTaps][N];

  __device__ int weight(int i, int tap) const {
    return tap < kStoredTaps ? weights[tap][i] : tap_weight(axis, taps[i], tap);
  }
};

struct Tile {
  TileTaps<kTileColumns> columns;
  TileTaps<kTileRows> rows;
  std::int16_t narrow[kChunkRows][kRowValues];
};

/// Pixels from `first` on of the resized image; those outside of it stand for its edges.
template <int N>
__device__ void find_taps(TileTaps<N>& tile, const ResizeAxis& axis, int first, int size,
                          int lane) {
  if (lane == 0) tile.axis = axis;
  if (lane >= 0 && lane < N) tile.taps[lane] = taps_of(axis, clamped(first + lane, 0, size - 1));
}
template <int N>
__device__ void find_weights(TileTaps<N>& tile) {
  for (int i = static_cast<int>(threadIdx.x); i < N * kStoredTaps; i += kThreads) {
    const int tap = i / N;
    const Taps& taps = tile.taps[i % N];
    if (tap < taps.count) tile.weights[tap][i % N] = tap_weight(tile.axis, taps, tap);
  }
}

/// Input rows [begin, end), at most a chunk, at the tile's columns.
__device__ void narrow_rows(Tile& tile, const SourceImage& source, int begin, int end) {
  const int column = static_cast<int>(threadIdx.x) % kTileColumns;
  const Taps& taps = tile.columns.taps[column];
  const bool bicubic = tile.columns.axis.bicubic;
  const int half = half_between(bicubic);
  for (int y = begin + static_cast<int>(threadIdx.x) / kTileColumns; y < end;
       y += kThreads / kTileColumns) {
    const std::uint8_t* pixel = source.pixels + y * source.row_bytes + Dim{taps.first} * 3;
    int sums[3] = {half, half, half};
    for (int tap = 0; tap < taps.count; ++tap, pixel += 3) {
      const int weight = tile.columns.weight(column, tap);
#pragma unroll
      for (int c = 0; c < 3; ++c) sums[c] += weight * pixel[c];
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      tile.narrow[y - begin][column * 3 + c] = level_between(sums[c], bicubic);
    }
  }
}

/// Adds the chunk's rows to this thread's values of the tile.
__device__ void add_rows(const Tile& tile, int begin, int end, int (&sums)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int value = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = value / kRowValues;
    const Taps& taps = tile.rows.taps[row];
    const int last = min(taps.first + taps.count, end);
    for (int y = max(taps.first, begin); y < last; ++y) {
      sums[i] += tile.rows.weight(row, y - taps.first) * tile.narrow[y - begin][value % kRowValues];
    }
  }
}

/// out: an image's first slot in scratch. x0, y0: where the tile begins.
__device__ void store_tile(const ImageAugmentation& augmentation, int x0, int y0, int size,
                           const int (&sums)[kValues], std::uint8_t* out) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int value = static_cast<int>(threadIdx.x) + i * kThreads;
    const int x = x0 + value % kRowValues / 3;
    const int y = y0 + value / kRowValues;
    if (x >= size || y >= size) continue;
    const int column = x + augmentation.shift_x;
    const int row = y + augmentation.shift_y;
    const bool exists = column >= 0 && column < size && row >= 0 && row < size;
    const int offset = augmentation.flip != 0 ? size - 1 - x : x;
    out[(Dim{y} * size + offset) * 3 + value % 3] = exists ? to_level(sums[i]) : std::uint8_t{0};
  }
}

__global__ void __launch_bounds__(kThreads) resize_images_kernel(ImageBatch batch, int tiles) {
  __shared__ Tile tile;
  const Dim b = blockIdx.x / (tiles * tiles);
  const int place = static_cast<int>(blockIdx.x % (tiles * tiles));
  const SourceImage source = batch.sources[b];
  const ImageAugmentation& augmentation = batch.augmentations[b];
  const int x0 = place % tiles * kTileColumns;
  const int thread = static_cast<int>(threadIdx.x);
  const bool beyond = augmentation.reads_beyond != 0;
  for (int y0 = place / tiles * kTileRows; y0 < batch.size; y0 += tiles * kTileRows) {
    __syncthreads();
    find_taps(tile.columns,
              resize_axis(augmentation.left, augmentation.right, source.width, batch.size, beyond,
                          batch.bicubic),
              x0 + augmentation.shift_x, batch.size, thread);
    find_taps(tile.rows,
              along_columns(resize_axis(augmentation.top, augmentation.bottom, source.height,
                                        batch.size, beyond, batch.bicubic)),
              y0 + augmentation.shift_y, batch.size, thread - kTileColumns);
    __syncthreads();
    find_weights(tile.columns);
    find_weights(tile.rows);
    int sums[kValues];
#pragma unroll
    for (int& sum : sums) sum = kHalfWeight;
    const Taps& last = tile.rows.taps[kTileRows - 1];
    const int stop = last.first + last.count;
    for (int begin = tile.rows.taps[0].first; begin < stop; begin += kChunkRows) {
      const int end = min(begin + kChunkRows, stop);
      __syncthreads();
      narrow_rows(tile, source, begin, end);
      __syncthreads();
      add_rows(tile, begin, end, sums);
    }
    store_tile(augmentation, x0, y0, batch.size, sums, batch.scratch + slot_of(b, 0, batch.size));
  }
}

}  // namespace

void resize_images(Context& ctx, const ImageBatch& batch) {
  const int tiles = static_cast<int>(ceil_divide(batch.size, kTileColumns));
  const auto blocks = static_cast<unsigned>(batch.count * tiles * tiles);
  resize_images_kernel<<<blocks, kThreads, 0, ctx.stream().cuda()>>>(batch, tiles);
  check_launch("augment_images");
}

}  // namespace hyperslab::ops::cuda
