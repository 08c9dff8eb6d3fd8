// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of kernels for experts' products: every element belongs to one tile.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cuda/experts/tiles.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kRows = 128;

struct Rows {
  std::vector<int> first = {0};
  std::vector<int> starts = {0};

  explicit Rows(const std::vector<int>& counts) {
    for (const int count : counts) {
      first.push_back(first.back() + count);
      starts.push_back(starts.back() + tiles_of(count, kRows));
    }
  }
  [[nodiscard]] int experts() const { return static_cast<int>(first.size()) - 1; }
};

std::vector<std::vector<int>> counts_of_experts() {
  std::vector<int> many(1024);
  for (std::size_t e = 0; e < many.size(); ++e) many[e] = static_cast<int>(e * 37 % 300 % 140);
  return {{1},          {128},
          {129},        {0, 0, 5},
          {7, 0, 0, 0}, {0, 300, 0, 0, 256, 0},
          many,         std::vector<int>(33, 127)};
}

TEST(ExpertTiles, CoverEveryRowOfEveryExpertOnce) {
  for (const std::vector<int>& counts : counts_of_experts()) {
    const Rows rows(counts);
    for (const int column_tiles : {1, 3, 8}) {
      std::vector<std::vector<int>> covered(
          static_cast<std::size_t>(column_tiles),
          std::vector<int>(static_cast<std::size_t>(rows.first.back())));
      for (int tile = 0; tile < rows.starts.back() * column_tiles; ++tile) {
        const ExpertTile at = expert_tile(rows.first.data(), rows.starts.data(), rows.experts(),
                                          column_tiles, kRows, tile);
        const auto expert = static_cast<std::size_t>(at.expert);
        ASSERT_GT(at.rows, 0);
        ASSERT_LE(at.rows, kRows);
        ASSERT_GE(at.first_row, rows.first[expert]);
        ASSERT_LE(at.first_row + at.rows, rows.first[expert + 1]);
        ASSERT_EQ((at.first_row - rows.first[expert]) % kRows, 0);
        ASSERT_TRUE(at.column_tile >= 0 && at.column_tile < column_tiles);
        for (int row = at.first_row; row < at.first_row + at.rows; ++row) {
          ++covered[static_cast<std::size_t>(at.column_tile)][static_cast<std::size_t>(row)];
        }
      }
      for (const std::vector<int>& of_columns : covered) {
        EXPECT_EQ(of_columns, std::vector<int>(of_columns.size(), 1));
      }
    }
  }
}

TEST(ExpertTiles, AreFoundWithoutCountsOfTiles) {
  for (const std::vector<int>& counts : counts_of_experts()) {
    const Rows rows(counts);
    const int tiles = rows.starts.back();
    for (int tile = 0; tile < tiles; ++tile) {
      const ExpertTile expected =
          expert_tile(rows.first.data(), rows.starts.data(), rows.experts(), 1, kRows, tile);
      const ExpertTile found = find_row_tile(rows.first.data(), rows.experts(), kRows, tile);
      EXPECT_EQ(found.expert, expected.expert);
      EXPECT_EQ(found.first_row, expected.first_row);
      EXPECT_EQ(found.rows, expected.rows);
    }
    for (const int beyond : {tiles, tiles + 1, tiles + 500}) {
      EXPECT_EQ(find_row_tile(rows.first.data(), rows.experts(), kRows, beyond).rows, 0);
    }
  }
}

TEST(ExpertTiles, OfWeightsCoverEveryMatrixOnce) {
  for (const auto& [experts, row_tiles, column_tiles] :
       std::vector<std::array<int, 3>>{{1, 1, 1}, {3, 4, 5}, {128, 2, 3}}) {
    std::vector<int> covered(static_cast<std::size_t>(experts * row_tiles * column_tiles));
    for (int tile = 0; tile < experts * row_tiles * column_tiles; ++tile) {
      const WeightTile at = weight_tile(row_tiles, column_tiles, tile);
      ASSERT_TRUE(at.expert < experts && at.row_tile < row_tiles && at.column_tile < column_tiles);
      ++covered[static_cast<std::size_t>((at.expert * row_tiles + at.row_tile) * column_tiles +
                                         at.column_tile)];
    }
    EXPECT_EQ(covered, std::vector<int>(covered.size(), 1));
  }
}

}  // namespace
}  // namespace hyperslab::ops::cuda
