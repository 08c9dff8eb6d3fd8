// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/average.hpp"

#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Average : public OpsTest {};

TEST_F(Average, FollowsItsDefinition) {
  constexpr double kDecay = 0.75;
  const AverageConstants constants = {static_cast<float>(1 - kDecay), 2};
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const Dim size : {1, 31, 5000}) {
      Tensor average = converted(random_tensor(DType::f32, {size}, 9).view(), dtype);
      std::vector<double> expected(static_cast<std::size_t>(size));
      for (int step = 1; step <= 6; ++step) {
        const Tensor master = converted(random_tensor(DType::f32, {size}, step).view(), dtype);
        StepState state;
        state.adam_step = step;
        average_weights(ctx, constants, &state, master.view(), average.view());

        const std::vector<double> weights = to_doubles(master.view());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] = step <= 3 ? weights[i] : kDecay * expected[i] + (1 - kDecay) * weights[i];
        }
        expect_values(average.view(), expected, dtype == DType::f64 ? 1e-14 : 1e-6);
      }
    }
  }
}

TEST_F(Average, ASkippedStepLeavesItAlone) {
  Tensor average = tensor_of(DType::f32, {3}, {1, 2, 3});
  const Tensor master = tensor_of(DType::f32, {3}, {7, 8, 9});
  for (const std::int64_t adam_step : {1, 5}) {  // it would begin, or go on
    StepState state;
    state.adam_step = adam_step;
    state.skip = 1;
    average_weights(ctx, {0.5F, 0}, &state, master.view(), average.view());
    expect_values(average.view(), {1, 2, 3}, 0);
  }
}

TEST_F(Average, AnExchangeIsUndoneByAnother) {
  for (const Dim size : {1, 9000}) {
    Tensor a = random_tensor(DType::f32, {size}, 1);
    Tensor b = random_tensor(DType::f32, {size}, 2);
    const std::vector<double> first = to_doubles(a.view());
    const std::vector<double> second = to_doubles(b.view());
    exchange(ctx, a.view(), b.view());
    expect_values(a.view(), second, 0);
    expect_values(b.view(), first, 0);
    exchange(ctx, a.view(), b.view());
    expect_values(a.view(), first, 0);
    expect_values(b.view(), second, 0);
  }
}

TEST_F(Average, OtherSizesAreRefused) {
  Tensor a = tensor_of(DType::f32, {3}, {1, 2, 3});
  Tensor b = tensor_of(DType::f32, {2}, {1, 2});
  const StepState state;
  EXPECT_THROW(exchange(ctx, a.view(), b.view()), Error);
  EXPECT_THROW(average_weights(ctx, {0.5F, 0}, &state, a.view(), b.view()), Error);
}

}  // namespace
}  // namespace hyperslab::ops
