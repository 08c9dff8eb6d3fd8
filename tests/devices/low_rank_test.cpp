// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/low_rank.hpp"

#include <cmath>

#include "ops/low_rank_case.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class LowRank : public DevicesTest {};

/// Operands 0 and 1 are dy and u, 2 is du, and then come B and dB of every part.
void expect_match(const LowRankCase& sizes, DType dtype, Accumulate accumulate) {
  Problem problem(dtype);
  problem
      .input(random_tensor(dtype, {sizes.rows, sizes.columns()}, 1,
                           1 / std::sqrt(static_cast<double>(sizes.rows))))
      .input(random_tensor(dtype, {sizes.rows, sizes.ranks()}, 2))
      .output(dtype, {sizes.rows, sizes.ranks()});
  std::uint64_t seed = 3;
  for (const Dim width : sizes.widths) {
    problem.input(random_tensor(dtype, {width, sizes.rank}, seed++));
    problem.in_out(accumulate == Accumulate::yes
                       ? random_tensor(DType::f32, {width, sizes.rank}, seed++)
                       : poisoned(DType::f32, {width, sizes.rank}));
  }
  problem.expect_match(
      [&](Context& ctx, const Views& v) {
        std::vector<LowRankPart> parts;
        Dim first = 0;
        for (std::size_t i = 0; i < sizes.widths.size(); ++i) {
          const Dim width = sizes.widths[i];
          parts.push_back({first + sizes.gap, width, v[3 + 2 * i], v[4 + 2 * i]});
          first += sizes.gap + width;
        }
        low_rank_backward(ctx, v[0], parts, v[1], 0.5F, accumulate, v[2]);
      },
      "low_rank_backward of " + std::to_string(sizes.rows) + " rows, rank " +
          std::to_string(sizes.rank) + ", " + std::to_string(sizes.widths.size()) + " parts in " +
          std::string(name_of(dtype)));
}

TEST_F(LowRank, AwkwardSizes) {
  const std::vector<LowRankCase> cases = {
      {.rows = 1, .rank = 8, .widths = {8}},
      {.rows = 127, .rank = 16, .widths = {520}},
      {.rows = 129, .rank = 32, .widths = {504, 8}, .gap = 16},
      {.rows = 300, .rank = 16, .widths = {1024, 256, 256}},
      {.rows = 2048, .rank = 16, .widths = {1536, 1536}},
      {.rows = 640, .rank = 8, .widths = {8, 16, 24, 4096}, .gap = 8},
      // Those that are read twice.
      {.rows = 130, .rank = 12, .widths = {96}},
      {.rows = 64, .rank = 16, .widths = {20, 44}},
      {.rows = 64, .rank = 16, .widths = {8, 8, 8, 8, 8}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const LowRankCase& sizes : cases) {
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        expect_match(sizes, dtype, accumulate);
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
