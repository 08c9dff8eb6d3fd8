// SPDX-License-Identifier: Apache-2.0
#include "matrix_rounds.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hyperslab/ops/muon.hpp"

namespace hyperslab::optim {
namespace {

/// Blocks of four square matrices and two of four times their size, with biases.
param::ParamStore blocks(int count) {
  param::ParamStore store;
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    store.begin_unit();
    for (const char* square : {".query", ".key", ".value", ".output"}) {
      store.declare({name + square, {8, 8}, param::Role::matrix, param::Init::normal, 1});
    }
    store.declare({name + ".up", {32, 8}, param::Role::matrix, param::Init::normal, 1});
    store.declare({name + ".bias", {32}, param::Role::bias, param::Init::zeros, 0});
    store.declare({name + ".down", {8, 32}, param::Role::matrix, param::Init::normal, 1});
  }
  store.lay_out(1);
  return store;
}

double cost(const OwnedMatrix& matrix) {
  const Shape& shape = matrix.param->global_shape;
  return ops::orthogonalize_flops(shape[0], shape[1]);
}

TEST(MatrixRounds, EveryMatrixHasOneOwnerAndCostsAreEven) {
  const param::ParamStore store = blocks(12);
  for (const int owners : {1, 2, 3, 4, 8}) {
    std::set<const param::Param*> seen;
    std::map<int, double> costs;
    double all = 0;
    double most = 0;
    for (const MatrixRound& round : plan_matrix_rounds(store.trained(), false, owners, 1 << 20)) {
      for (const OwnedMatrix& matrix : round) {
        EXPECT_TRUE(seen.insert(matrix.param).second) << matrix.param->name;
        most = std::max(most, costs[matrix.owner] += cost(matrix));
        all += cost(matrix);
      }
    }
    EXPECT_EQ(seen.size(), 12U * 6U);
    EXPECT_EQ(costs.size(), static_cast<std::size_t>(owners));
    EXPECT_LE(most, 1.1 * all / owners) << owners;
  }
}

TEST(MatrixRounds, HoldAtMostTheElementsAskedForAndBatchesOfOneShape) {
  const param::ParamStore store = blocks(5);
  for (const Dim most : {Dim{1}, Dim{256}, Dim{600}, Dim{1} << 20}) {
    std::size_t batches = 0;
    for (const MatrixRound& round : plan_matrix_rounds(store.trained(), false, 3, most)) {
      std::map<int, Dim> elements;
      Shape last;
      int owner = -1;
      for (const OwnedMatrix& matrix : round) {
        EXPECT_GE(matrix.owner, owner);
        if (matrix.owner != owner || !(matrix.param->global_shape == last)) ++batches;
        owner = matrix.owner;
        last = matrix.param->global_shape;
        elements[owner] += last.numel();
      }
      for (const auto& [of, sum] : elements) EXPECT_LE(sum, std::max(most, Dim{256})) << of;
    }
    if (most == Dim{1} << 20) {
      EXPECT_LE(batches, 3U * 3U);  // three shapes
    }
  }
}

TEST(MatrixRounds, NoMatricesNoRounds) {
  const param::ParamStore store = blocks(0);
  EXPECT_TRUE(plan_matrix_rounds(store.trained(), false, 4, 1).empty());
}

}  // namespace
}  // namespace hyperslab::optim
