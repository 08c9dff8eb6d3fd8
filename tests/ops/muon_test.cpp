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

  /// The result of orthogonalize for a batch in a dtype, with products in another one.
  std::vector<double> orthogonal(const Tensor& x, DType dtype, DType products) {
    const Tensor batch = converted(x.view(), dtype);
    const Dim size = batch.view().numel();
    Tensor now(Device::cpu, products, {size});
    Tensor other(Device::cpu, products, {size});
    Tensor gram(Device::cpu, products, {size});
    Tensor polynomial(Device::cpu, products, {size});
    return to_doubles(orthogonalize(ctx, batch.view(),
                                    {now.view(), other.view(), gram.view(), polynomial.view()}));
  }
  std::vector<double> orthogonal(const Tensor& x, DType dtype) {
    return orthogonal(x, dtype, dtype);
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

/// Of every matrix of a batch, one after the other.
std::vector<double> newton_schulz_of(const Tensor& x) {
  const std::vector<double> values = to_doubles(x.view());
  const Dim count = x.view().numel() / x.view().shape()[0];
  std::vector<double> out;
  for (auto at = values.begin(); at != values.end(); at += count) {
    for (const auto& row : newton_schulz(rows_of({at, at + count}, x.view().shape()[2]))) {
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

TEST_F(Muon, NewtonSchulzFollowsThePaperOnWideSquareAndTallMatrices) {
  for (const Shape& shape : {Shape{3, 12, 20}, Shape{2, 9, 9}, Shape{3, 20, 12}, Shape{1, 1, 5}}) {
    SCOPED_TRACE(shape.str());
    const Tensor x = random_tensor(DType::f32, shape, 7);

    const std::vector<double> found = orthogonal(x, DType::f64);

    const std::vector<double> expected = newton_schulz_of(x);
    const std::vector<double> single = orthogonal(x, DType::f32);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-12);
      EXPECT_NEAR(single[i], expected[i], 1e-4);
    }
  }
}

/// Of matrices in a batch with others.
TEST_F(Muon, ABatchHasTheBitsOfItsMatrices) {
  Tensor batch = random_tensor(DType::f32, {3, 6, 4}, 5);

  const std::vector<double> together = orthogonal(batch, DType::f32);

  for (Dim i = 0; i < 3; ++i) {
    const Tensor one = converted(batch.view().slice(i, 1), DType::f32);
    const std::vector<double> alone = orthogonal(one, DType::f32);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + i * 24)) << i;
  }
}

TEST_F(Muon, SingularValuesComeNearOne) {
  for (const DType products : {DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{2, 12, 20}, Shape{2, 20, 12}}) {
      const Tensor x = random_tensor(DType::f32, shape, 3);
      const std::vector<double> values = orthogonal(x, DType::f32, products);
      for (const auto first : {values.begin(), values.begin() + 240}) {
        Rows result = rows_of({first, first + 240}, shape[2]);
        if (shape[1] > shape[2]) result = transposed(result);
        for (const double value : singular_values(result)) {
          EXPECT_GT(value, 0.65);
          EXPECT_LT(value, 1.25);
        }
      }
    }
  }
}

TEST_F(Muon, AZeroMatrixStaysZero) {
  for (const double value : orthogonal(filled_tensor(DType::f32, {2, 3, 4}, 0), DType::f32)) {
    EXPECT_EQ(value, 0);
  }
}

TEST_F(Muon, EveryMatrixIsDividedByItsOwnNorm) {
  const Tensor x = tensor_of(DType::f32, {2, 1, 2}, {3, 4, 0, -8});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor y(Device::cpu, dtype, {2, 1, 2});

    normalize_matrices(ctx, x.view(), y.view());

    expect_values(y.view(), {0.6, 0.8, 0, -1}, dtype == DType::bf16 ? 4e-3 : 1e-7);
  }
}

TEST_F(Muon, ProductsByHand) {
  const Tensor wide = tensor_of(DType::f64, {1, 1, 2}, {3, 4});
  const Tensor tall = tensor_of(DType::f64, {1, 2, 1}, {3, 4});
  const Tensor addend = tensor_of(DType::f64, {1, 1, 1}, {2});
  Tensor gram(Device::cpu, DType::f64, {1, 1, 1});
  Tensor sum(Device::cpu, DType::f64, {1, 1, 1});

  for (const Tensor* x : {&wide, &tall}) {
    matmul_gram(ctx, x->view(), gram.view());
    expect_values(gram.view(), {25}, 0);
  }
  matmul_add(ctx, {0.5F, 3}, wide.view(), tall.view(), addend.view(), sum.view());

  expect_values(sum.view(), {0.5 * 25 + 3 * 2}, 0);
}

TEST_F(Muon, DirectionAndUpdateByHand) {
  const Tensor gradient = tensor_of(DType::f64, {1}, {4});
  Tensor average = tensor_of(DType::f64, {1}, {1});
  Tensor direction = tensor_of(DType::f64, {1}, {9});
  Tensor master = tensor_of(DType::f64, {1}, {2});
  Tensor value(Device::cpu, DType::f64, {1});

  muon_direction(ctx, 0.75F, &state, gradient.view(), average.view(), direction.view());
  muon_update(ctx, 0.125F, DecayRule::all, &state,
              {master.view(), direction.view(), value.view(), {}});

  // g = 2; b = 0.75 + 0.5 = 1.25; direction = 0.9375 + 0.5
  expect_values(average.view(), {1.25}, 1e-14);
  expect_values(direction.view(), {1.4375}, 1e-14);
  expect_values(master.view(), {2 - 0.25 * (1.4375 + 0.125 * 2)}, 1e-14);
  expect_values(value.view(), {2 - 0.25 * (1.4375 + 0.125 * 2)}, 1e-14);
}

TEST_F(Muon, ACautiousDecayLeavesWeightsAloneThatGrow) {
  Tensor master = tensor_of(DType::f64, {2}, {2, -2});
  const Tensor direction = tensor_of(DType::f64, {2}, {1, 1});

  muon_update(ctx, 0.125F, DecayRule::cautious, &state, {master.view(), direction.view(), {}, {}});

  expect_values(master.view(), {2 - 0.25 * (1 + 0.125 * 2), -2 - 0.25}, 1e-14);
}

TEST_F(Muon, ASkippedStepChangesNothing) {
  state.skip = 1;
  const Tensor gradient = tensor_of(DType::f32, {1}, {NAN});
  Tensor average = tensor_of(DType::f32, {1}, {1});
  Tensor direction = tensor_of(DType::f32, {1}, {9});
  Tensor master = tensor_of(DType::f32, {1}, {2});

  muon_direction(ctx, 0.75F, &state, gradient.view(), average.view(), direction.view());
  muon_update(ctx, 0.125F, DecayRule::all, &state, {master.view(), direction.view(), {}, {}});

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

TEST_F(Muon, RefusesRatesByParameter) {
  Tensor master = filled_tensor(DType::f32, {4}, 0);
  const Tensor direction = filled_tensor(DType::f32, {4}, 0);
  const Tensor rate = filled_tensor(DType::f32, {1}, 1);
  expect_error_naming("muon rate", [&] {
    muon_update(ctx, 0.125F, DecayRule::all, &state,
                {master.view(), direction.view(), {}, {}, rate.view()});
  });
}

}  // namespace
}  // namespace hyperslab::ops
