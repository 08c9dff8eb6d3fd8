// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/philox.hpp"

// Tiles of products whose rows belong to experts: which expert's rows and which columns a tile has.
// first_rows[e] is the first row of expert e, first_rows[experts] the end of the last one's.

namespace hyperslab::ops::cuda {

/// Tiles of `size` rows or columns that cover `count` of them.
HS_HOST_DEVICE constexpr int tiles_of(int count, int size) { return (count + size - 1) / size; }

/// A part of an expert's product.
struct ExpertTile {
  int expert;
  int first_row;  ///< among the rows of all experts
  int rows;       ///< rows that are there, at most a tile's
  int column_tile;
};

/// The expert of a tile of rows. starts[e]: tiles of rows before those of expert e, ascending from
/// 0; tile: less than starts[experts].
HS_HOST_DEVICE constexpr int expert_of_tile(const int* starts, int experts, int tile) {
  int low = 0;
  int high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The tile of that number, of starts[experts] * column_tiles. An expert's tiles follow each other,
/// those of the same columns first.
HS_HOST_DEVICE constexpr ExpertTile expert_tile(const int* first_rows, const int* starts,
                                                int experts, int column_tiles, int tile_rows,
                                                int tile) {
  const int expert = expert_of_tile(starts, experts, tile / column_tiles);
  const int row_tiles = starts[expert + 1] - starts[expert];
  const int within = tile - starts[expert] * column_tiles;
  const int first = first_rows[expert] + within % row_tiles * tile_rows;
  const int rest = first_rows[expert + 1] - first;
  return {expert, first, rest < tile_rows ? rest : tile_rows, within / row_tiles};
}

/// The tile of rows of that number, found from first_rows alone; without rows beyond the last one.
HS_HOST_DEVICE constexpr ExpertTile find_row_tile(const int* first_rows, int experts, int tile_rows,
                                                  int tile) {
  for (int expert = 0; expert < experts; ++expert) {
    const int first = first_rows[expert] + tile * tile_rows;
    const int rest = first_rows[expert + 1] - first;
    if (rest > 0) return {expert, first, rest < tile_rows ? rest : tile_rows, 0};
    tile -= tiles_of(first_rows[expert + 1] - first_rows[expert], tile_rows);
  }
  return {experts, 0, 0, 0};
}

/// The part of a gradient of the experts' matrices that a tile has.
struct WeightTile {
  int expert;
  int row_tile;
  int column_tile;
};
/// The tile of that number, of experts * row_tiles * column_tiles.
HS_HOST_DEVICE constexpr WeightTile weight_tile(int row_tiles, int column_tiles, int tile) {
  const int within = tile % (row_tiles * column_tiles);
  return {tile / (row_tiles * column_tiles), within % row_tiles, within / row_tiles};
}

}  // namespace hyperslab::ops::cuda
