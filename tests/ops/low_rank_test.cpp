// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/low_rank.hpp"

#include "hyperslab/core/ledger.hpp"
#include "low_rank_case.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class LowRank : public OpsTest {};

/// Operands in f64, and what low_rank_backward makes of them.
struct Operands {
  explicit Operands(const LowRankCase& sizes)
      : dy(random_tensor(DType::f64, {sizes.rows, sizes.columns()}, 1)),
        u(random_tensor(DType::f64, {sizes.rows, sizes.ranks()}, 2)),
        du(poisoned(DType::f64, {sizes.rows, sizes.ranks()})) {
    std::uint64_t seed = 3;
    Dim first = 0;
    for (const Dim width : sizes.widths) {
      b.push_back(random_tensor(DType::f64, {width, sizes.rank}, seed++));
      db.push_back(random_tensor(DType::f64, {width, sizes.rank}, seed++));
      parts.push_back({first + sizes.gap, width, b.back().view(), db.back().view()});
      first += sizes.gap + width;
    }
  }
  Tensor dy;
  Tensor u;
  Tensor du;
  std::vector<Tensor> b;
  std::vector<Tensor> db;
  std::vector<LowRankPart> parts;
};

TEST_F(LowRank, GradientsAreThoseOfTheDefinition) {
  const LowRankCase sizes = {.rows = 5, .rank = 3, .widths = {4, 2}, .gap = 1};
  constexpr double kScale = 0.5;
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    Operands operands(sizes);
    const std::vector<double> dy = to_doubles(operands.dy.view());
    const std::vector<double> u = to_doubles(operands.u.view());
    std::vector<double> du(static_cast<std::size_t>(sizes.rows * sizes.ranks()), 0.0);
    std::vector<std::vector<double>> db;
    for (std::size_t i = 0; i < operands.parts.size(); ++i) {
      const LowRankPart& part = operands.parts[i];
      const std::vector<double> b = to_doubles(part.b);
      db.push_back(to_doubles(part.db));
      if (accumulate == Accumulate::no) std::ranges::fill(db.back(), 0.0);
      for (Dim row = 0; row < sizes.rows; ++row) {
        for (Dim column = 0; column < part.count; ++column) {
          const double gradient = dy[row * sizes.columns() + part.first + column];
          for (Dim r = 0; r < sizes.rank; ++r) {
            const Dim between = row * sizes.ranks() + static_cast<Dim>(i) * sizes.rank + r;
            du[between] += kScale * gradient * b[column * sizes.rank + r];
            db.back()[column * sizes.rank + r] += gradient * u[between];
          }
        }
      }
    }

    low_rank_backward(ctx, operands.dy.view(), operands.parts, operands.u.view(), kScale,
                      accumulate, operands.du.view());

    expect_values(operands.du.view(), du, 1e-12);
    for (std::size_t i = 0; i < db.size(); ++i) {
      expect_values(operands.db[i].view(), db[i], 1e-12);
    }
  }
}

TEST_F(LowRank, PartsThatDoNotFitAreNamed) {
  Operands operands({.rows = 2, .rank = 2, .widths = {3, 3}});
  const auto call = [&] {
    low_rank_backward(ctx, operands.dy.view(), operands.parts, operands.u.view(), 1, Accumulate::no,
                      operands.du.view());
  };
  operands.parts[1].first = 4;
  expect_error_naming("a part beyond the last column", call);
  operands.parts[1].first = 3;
  operands.parts[1].count = 2;
  expect_error_naming("low_rank_backward b", call);
  operands.parts.pop_back();
  expect_error_naming("low_rank_backward u", call);
}

TEST_F(LowRank, PlansForGpusReadTheGradientOnceIfSizesSuit) {
  const auto bytes_of = [](Dim rank, DType dtype) {
    Context meta(Device::meta, 0, Device::cuda);
    const auto view = [&](DType type, const Shape& shape) {
      return View(nullptr, type, Device::meta, shape);
    };
    const std::vector<LowRankPart> parts = {
        {0, 1024, view(dtype, {1024, rank}), view(DType::f32, {1024, rank})}};
    low_rank_backward(meta, view(dtype, {256, 1024}), parts, view(dtype, {256, rank}), 1,
                      Accumulate::no, view(dtype, {256, rank}));
    return meta.ledger().total().bytes;
  };
  const double dy_bytes = 256 * 1024 * 2;
  EXPECT_LT(bytes_of(16, DType::bf16), 1.5 * dy_bytes);
  EXPECT_GT(bytes_of(12, DType::bf16), 2 * dy_bytes);
  EXPECT_GT(bytes_of(16, DType::f32), 4 * dy_bytes);
}

}  // namespace
}  // namespace hyperslab::ops
