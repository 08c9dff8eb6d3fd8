// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/muon.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Muon : public OpsTest {
 protected:
  StepState state{.input = {.learning_rate = 0.25F}, .clip_scale = 0.5F};

  /// The result of orthogonalize for a copy of x.
  std::vector<double> orthogonal(const Tensor& x, DType dtype) {
    Tensor copy = converted(x.view(), dtype);
    const Dim size = copy.view().numel();
    Tensor other(Device::cpu, dtype, {size});
    Tensor gram(Device::cpu, dtype, {size});
    Tensor polynomial(Device::cpu, dtype, {size});
    Tensor sums(Device::cpu, dtype, {kSumCount});
    return to_doubles(orthogonalize(ctx, copy.view(),
                                    {other.view(), gram.view(), polynomial.view(), sums.view()}));
  }
};

/// A matrix of rows, in double.
using Rows = std::vector<std::vector<double>>;

Rows rows_of(const std::vector<double>& values, Dim columns) {
  Rows rows;
  for (auto at = values.begin(); at != values.end(); at += columns) {
    rows.emplace_back(at, at + columns);
  }
  return rows;
}

Rows transposed(const Rows& x) {
  Rows y(x[0].size(), std::vector<double>(x.size()));
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t c = 0; c < x[0].size(); ++c) y[c][r] = x[r][c];
  }
  return y;
}

Rows product(const Rows& a, const Rows& b) {
  const Rows columns = transposed(b);
  Rows c(a.size(), std::vector<double>(columns.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < columns.size(); ++j) {
      c[i][j] = std::inner_product(a[i].begin(), a[i].end(), columns[j].begin(), 0.0);
    }
  }
  return c;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// The iteration in the form of the paper: always from the left, with A x first.
Rows newton_schulz(Rows x) {
  double squares = 0;
  for (const auto& row : x) squares += dot(row, row);
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(squares);
  }
  for (int step = 0; step < 5; ++step) {
    const Rows gram = product(x, transposed(x));
    const Rows once = product(gram, x);
    const Rows twice = product(gram, once);
    for (std::size_t r = 0; r < x.size(); ++r) {
      for (std::size_t c = 0; c < x[0].size(); ++c) {
        x[r][c] = 3.4445F * x[r][c] + -4.7750F * once[r][c] + 2.0315F * twice[r][c];
      }
    }
  }
  return x;
}

/// By one-sided Jacobi rotations of the rows, of which there are at most as many as columns.
std::vector<double> singular_values(Rows x) {
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = i + 1; j < x.size(); ++j) {
        const double angle =
            0.5 * std::atan2(2 * dot(x[i], x[j]), dot(x[i], x[i]) - dot(x[j], x[j]));
        for (std::size_t c = 0; c < x[i].size(); ++c) {
          const double left = x[i][c];
          x[i][c] = std::cos(angle) * left + std::sin(angle) * x[j][c];
          x[j][c] = std::cos(angle) * x[j][c] - std::sin(angle) * left;
        }
      }
    }
  }
  std::vector<double> values;
  for (const auto& row : x) values.push_back(std::sqrt(dot(row, row)));
  return values;
}

TEST_F(Muon, NewtonSchulzFollowsThePaperOnWideSquareAndTallMatrices) {
  for (const Shape& shape : {Shape{12, 20}, Shape{9, 9}, Shape{20, 12}, Shape{1, 5}}) {
    SCOPED_TRACE(shape.str());
    const Tensor x = random_tensor(DType::f32, shape, 7);

    const std::vector<double> found = orthogonal(x, DType::f64);

    std::vector<double> expected;
    for (const auto& row : newton_schulz(rows_of(to_doubles(x.view()), shape[1]))) {
      expected.insert(expected.end(), row.begin(), row.end());
    }
    const std::vector<double> single = orthogonal(x, DType::f32);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-12);
      EXPECT_NEAR(single[i], expected[i], 1e-4);
    }
  }
}

TEST_F(Muon, SingularValuesComeNearOne) {
  for (const Shape& shape : {Shape{12, 20}, Shape{20, 12}}) {
    const Tensor x = random_tensor(DType::f32, shape, 3);
    Rows result = rows_of(orthogonal(x, DType::f32), shape[1]);
    if (shape[0] > shape[1]) result = transposed(result);
    for (const double value : singular_values(result)) {
      EXPECT_GT(value, 0.65);
      EXPECT_LT(value, 1.25);
    }
  }
}

TEST_F(Muon, AZeroMatrixStaysZero) {
  for (const double value : orthogonal(filled_tensor(DType::f32, {3, 4}, 0), DType::f32)) {
    EXPECT_EQ(value, 0);
  }
}

TEST_F(Muon, DirectionAndUpdateByHand) {
  const Tensor gradient = tensor_of(DType::f64, {1}, {4});
  Tensor average = tensor_of(DType::f64, {1}, {1});
  Tensor direction = tensor_of(DType::f64, {1}, {9});
  Tensor master = tensor_of(DType::f64, {1}, {2});
  Tensor value(Device::cpu, DType::f64, {1});

  muon_direction(ctx, 0.75F, &state, gradient.view(), average.view(), direction.view());
  muon_update(ctx, 0.5F, 0.125F, &state, {master.view(), direction.view(), value.view(), {}});

  // g = 2; b = 0.75 + 0.5 = 1.25; direction = 0.9375 + 0.5
  expect_values(average.view(), {1.25}, 1e-14);
  expect_values(direction.view(), {1.4375}, 1e-14);
  expect_values(master.view(), {2 - 0.25 * (0.5 * 1.4375 + 0.125 * 2)}, 1e-14);
  expect_values(value.view(), {2 - 0.25 * (0.5 * 1.4375 + 0.125 * 2)}, 1e-14);
}

TEST_F(Muon, ASkippedStepChangesNothing) {
  state.skip = 1;
  const Tensor gradient = tensor_of(DType::f32, {1}, {NAN});
  Tensor average = tensor_of(DType::f32, {1}, {1});
  Tensor direction = tensor_of(DType::f32, {1}, {9});
  Tensor master = tensor_of(DType::f32, {1}, {2});

  muon_direction(ctx, 0.75F, &state, gradient.view(), average.view(), direction.view());
  muon_update(ctx, 0.5F, 0.125F, &state, {master.view(), direction.view(), {}, {}});

  expect_values(average.view(), {1}, 0);
  expect_values(direction.view(), {0}, 0);
  expect_values(master.view(), {2}, 0);
}

TEST_F(Muon, RefusesViewsOfOtherSizes) {
  const Tensor gradient = filled_tensor(DType::f32, {4}, 0);
  Tensor average = filled_tensor(DType::f32, {3}, 0);
  Tensor direction = filled_tensor(DType::f32, {4}, 0);
  expect_error_naming("muon average", [&] {
    muon_direction(ctx, 0.5F, &state, gradient.view(), average.view(), direction.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
