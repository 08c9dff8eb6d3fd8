// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "image_stages.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// The filter of all output pixels of one side.
struct Filter {
  std::vector<Taps> taps;
  std::vector<int> weights;  ///< `most` for each output pixel, zeros after its own
  std::size_t most = 0;
  int low = 0, high = 0;  ///< input pixels that any output pixel reads: [low, high)
  bool bicubic = false;
};

Filter filter_of(const ResizeAxis& axis, int size) {
  Filter filter;
  filter.bicubic = axis.bicubic;
  filter.low = axis.high;
  for (int i = 0; i < size; ++i) {
    const Taps taps = taps_of(axis, i);
    filter.most = std::max(filter.most, static_cast<std::size_t>(taps.count));
    filter.low = std::min(filter.low, taps.first);
    filter.high = std::max(filter.high, taps.first + taps.count);
    filter.taps.push_back(taps);
  }
  filter.weights.resize(filter.most * filter.taps.size());
  for (std::size_t i = 0; i < filter.taps.size(); ++i) {
    for (int tap = 0; tap < filter.taps[i].count; ++tap) {
      filter.weights[i * filter.most + static_cast<std::size_t>(tap)] =
          tap_weight(axis, filter.taps[i], tap);
    }
  }
  return filter;
}

/// in: a row of the source and one byte more; out: (size, 3).
void resize_row(const Filter& filter, const std::uint8_t* in, std::int16_t* out) {
  const int half = half_between(filter.bicubic);
  for (std::size_t i = 0; i < filter.taps.size(); ++i) {
    const std::uint8_t* pixel = in + std::ptrdiff_t{filter.taps[i].first - filter.low} * 3;
    const int* weights = &filter.weights[i * filter.most];
    // Four sums fill a vector; the last one is of the next pixel and not used.
    int sums[4] = {half, half, half, 0};
    for (int tap = 0; tap < filter.taps[i].count; ++tap, pixel += 3) {
      for (int c = 0; c < 4; ++c) sums[c] += weights[tap] * pixel[c];
    }
    for (int c = 0; c < 3; ++c) {
      out[i * 3 + static_cast<std::size_t>(c)] = level_between(sums[c], filter.bicubic);
    }
  }
}

/// rows: those from filter.low on, of `width` values each; out: output row i.
void resize_columns(const Filter& filter, std::size_t i, const std::int16_t* rows,
                    std::vector<int>& sums, std::uint8_t* out) {
  std::ranges::fill(sums, kHalfWeight);
  const std::size_t width = sums.size();
  for (int tap = 0; tap < filter.taps[i].count; ++tap) {
    const int weight = filter.weights[i * filter.most + static_cast<std::size_t>(tap)];
    const auto row = static_cast<std::size_t>(filter.taps[i].first - filter.low + tap);
    const std::int16_t* values = rows + row * width;
    for (std::size_t k = 0; k < width; ++k) sums[k] += weight * values[k];
  }
  for (std::size_t k = 0; k < width; ++k) out[k] = to_level(sums[k]);
}

/// A row of the resized image to its offset in the output, zeros beside it.
void place_row(const std::uint8_t* row, const ImageAugmentation& augmentation, int size,
               std::uint8_t* out) {
  const int shift = augmentation.shift_x;
  if (shift == 0 && augmentation.flip == 0) {
    std::copy_n(row, std::ptrdiff_t{size} * 3, out);
    return;
  }
  std::fill_n(out, std::ptrdiff_t{size} * 3, std::uint8_t{0});
  for (int x = std::max(0, -shift); x < std::min(size, size - shift); ++x) {
    const std::ptrdiff_t offset = augmentation.flip != 0 ? size - 1 - x : x;
    for (int c = 0; c < 3; ++c) out[offset * 3 + c] = row[std::ptrdiff_t{x + shift} * 3 + c];
  }
}

/// Input rows that any output row reads, at the output's columns.
std::vector<std::int16_t> narrowed_rows(const SourceImage& source, const Filter& columns,
                                        const Filter& rows) {
  const std::size_t width = columns.taps.size() * 3;
  std::vector<std::int16_t> narrow(static_cast<std::size_t>(rows.high - rows.low) * width);
  const std::ptrdiff_t read_bytes = std::ptrdiff_t{columns.high - columns.low} * 3;
  std::vector<std::uint8_t> padded(static_cast<std::size_t>(read_bytes) + 1);
  for (int y = rows.low; y < rows.high; ++y) {
    const std::uint8_t* from = source.pixels + y * source.row_bytes;
    std::copy_n(from + std::ptrdiff_t{columns.low} * 3, read_bytes, padded.data());
    resize_row(columns, padded.data(), &narrow[static_cast<std::size_t>(y - rows.low) * width]);
  }
  return narrow;
}

}  // namespace

void resize_image(const SourceImage& source, const ImageAugmentation& augmentation,
                  const ImageOutput& output, std::uint8_t* out) {
  const int size = static_cast<int>(output.size);
  const bool beyond = augmentation.reads_beyond != 0;
  const Filter columns = filter_of(resize_axis(augmentation.left, augmentation.right, source.width,
                                               size, beyond, output.bicubic),
                                   size);
  const Filter rows =
      filter_of(along_columns(resize_axis(augmentation.top, augmentation.bottom, source.height,
                                          size, beyond, output.bicubic)),
                size);
  const std::vector<std::int16_t> narrow = narrowed_rows(source, columns, rows);
  const std::size_t width = static_cast<std::size_t>(size) * 3;
  std::vector<int> sums(width);
  std::vector<std::uint8_t> row(width);
  for (int y = 0; y < size; ++y) {
    std::uint8_t* to = out + static_cast<std::size_t>(y) * width;
    const int from = y + augmentation.shift_y;
    if (from < 0 || from >= size) {
      std::fill_n(to, width, std::uint8_t{0});
      continue;
    }
    resize_columns(rows, static_cast<std::size_t>(from), narrow.data(), sums, row.data());
    place_row(row.data(), augmentation, size, to);
  }
}

}  // namespace hyperslab::ops::cpu
