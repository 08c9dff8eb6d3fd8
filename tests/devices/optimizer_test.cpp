// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "hyperslab/ops/average.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/muon.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Optimizer : public DevicesTest {
 protected:
  StepState state;
  void SetUp() override {
    DevicesTest::SetUp();
    state.input.learning_rate = 1e-2F;
    state.clip_scale = 0.5F;
    state.bias_correction1 = 0.19F;
    state.bias_correction2 = 0.0975F;
  }
  /// decay, state, master, gradient, exp_avg, exp_avg_sq, value.
  [[nodiscard]] Problem update(Dim size, DType value, DType moment = DType::f32) const {
    const Dim granules = (size + kDecayGranule - 1) / kDecayGranule;
    std::vector<double> decays(static_cast<std::size_t>(granules));
    for (std::size_t i = 0; i < decays.size(); ++i) decays[i] = i % 3 == 0 ? 0.1 : 0.0;
    auto squares = to_doubles(random_tensor(DType::f32, {size}, 4).view());
    for (double& square : squares) square *= square;
    Problem problem(DType::f32);
    problem.fixed(tensor_of(DType::f32, {granules}, decays))
        .fixed(bytes_of(state))
        .in_out(random_tensor(DType::f32, {size}, 1))
        .input(random_tensor(DType::f32, {size}, 2))
        .in_out(random_tensor(moment, {size}, 3))
        .in_out(tensor_of(moment, {size}, squares))
        .output(value, {size});
    return problem;
  }
};

void update_call(Context& ctx, const Views& v) {
  adamw(ctx, {}, struct_at<StepState>(v[1]), {v[2], v[3], v[6], v[0]}, v[4], v[5]);
}

TEST_F(Optimizer, AdamW) {
  for (const DType value : kStoredTypes) {
    for (const Dim size : {1, 31, 64, 4097, 100000}) {
      update(size, value).expect_match(update_call, "adamw with " + std::string(name_of(value)));
    }
  }
}

TEST_F(Optimizer, AdamWWithRates) {
  for (const DType moment : {DType::f32, DType::bf16}) {
    for (const Dim size : {1, 31, 64, 4097, 100000}) {
      const Dim granules = (size + kDecayGranule - 1) / kDecayGranule;
      std::vector<double> rates(static_cast<std::size_t>(granules));
      for (std::size_t i = 0; i < rates.size(); ++i) rates[i] = i % 4 == 0 ? 0.3 : 1.0;
      Problem problem = update(size, DType::bf16, moment);
      problem.fixed(tensor_of(DType::f32, {granules}, rates));
      problem.expect_match(
          [](Context& ctx, const Views& v) {
            adamw(ctx, {}, struct_at<StepState>(v[1]), {v[2], v[3], v[6], v[0], v[7]}, v[4], v[5]);
          },
          "adamw with rates, moments in " + std::string(name_of(moment)));
    }
  }
}

TEST_F(Optimizer, AverageOfWeights) {
  const auto call = [](Context& ctx, const Views& v) {
    average_weights(ctx, {0.25F, 1}, struct_at<StepState>(v[0]), v[1], v[2]);
  };
  for (const std::int64_t adam_step : {1, 2, 3}) {  // the average begins twice, and goes on
    for (const int skip : {0, 1}) {
      state.adam_step = adam_step;
      state.skip = skip;
      for (const Dim size : {1, 31, 64, 4097, 100000}) {
        Problem problem(DType::f32);
        problem.fixed(bytes_of(state))
            .input(random_tensor(DType::f32, {size}, 1))
            .in_out(random_tensor(DType::f32, {size}, 2));
        problem.expect_match(call, "average_weights");
      }
    }
  }
}

TEST_F(Optimizer, Exchange) {
  const auto call = [](Context& ctx, const Views& v) { exchange(ctx, v[0], v[1]); };
  for (const Dim size : {1, 31, 64, 4097, 100000}) {
    Problem problem(DType::f32);
    problem.in_out(random_tensor(DType::f32, {size}, 1))
        .in_out(random_tensor(DType::f32, {size}, 2));
    problem.expect_match(call, "exchange");
  }
}

TEST_F(Optimizer, AdamWWithMomentsInBf16) {
  state.adam_step = 7;
  const auto call = [](Context& ctx, const Views& v) {
    AdamWConstants constants;
    constants.decay_rule = DecayRule::cautious;
    adamw(ctx, constants, struct_at<StepState>(v[1]), {v[2], v[3], v[6], v[0]}, v[4], v[5]);
  };
  for (const DType value : kStoredTypes) {
    for (const Dim size : {1, 31, 64, 4097, 100000}) {
      update(size, value, DType::bf16).expect_match(call, "adamw with moments in bf16");
    }
  }
}

TEST_F(Optimizer, Sgd) {
  const auto call = [](Context& ctx, const Views& v) {
    sgd(ctx, 0.9F, struct_at<StepState>(v[1]), {v[2], v[3], v[6], v[0]}, v[4]);
  };
  for (const DType value : kStoredTypes) {
    for (const Dim size : {1, 31, 64, 4097, 100000}) {
      update(size, value).expect_match(call, "sgd with " + std::string(name_of(value)));
    }
  }
}

TEST_F(Optimizer, MuonDirectionAndUpdate) {
  const auto call = [](Context& ctx, const Views& v) {
    const auto* on_device = struct_at<StepState>(v[1]);
    muon_direction(ctx, 0.95F, on_device, v[3], v[4], v[5]);
    muon_update(ctx, 0.1F, DecayRule::cautious, on_device, {v[2], v[5], v[6], {}});
  };
  for (const DType value : kStoredTypes) {
    for (const Dim size : {1, 31, 64, 4097, 100000}) {
      update(size, value).expect_match(call, "muon with " + std::string(name_of(value)));
    }
  }
}

/// Batches of wide, square and tall matrices, some of no whole vectors.
const std::array kBatches = {Shape{3, 48, 96}, Shape{2, 96, 48}, Shape{4, 64, 64}, Shape{2, 33, 65},
                             Shape{1, 129, 7}};

TEST_F(Optimizer, NormalizeMatrices) {
  const auto call = [](Context& ctx, const Views& v) { normalize_matrices(ctx, v[0], v[1]); };
  for (const DType products : {DType::f32, DType::bf16}) {
    for (const Shape& shape : kBatches) {
      Problem problem(products);
      problem.input(random_tensor(DType::f32, shape, 1, 30.0)).output(products, shape);
      problem.expect_match(call, "normalize_matrices " + shape.str());
    }
  }
}

TEST_F(Optimizer, ScaleKeepsTheDtypeOrWidens) {
  const auto call = [](Context& ctx, const Views& v) {
    scale(ctx, 0.3F, v[0], v[1]);
    scale(ctx, 0.3F, v[2], v[2]);
  };
  for (const DType dtype : compute_types()) {
    for (const DType out : {DType::f32, dtype}) {
      for (const Dim size : {1, 31, 4096, 70001}) {
        Problem problem(out);
        problem.input(random_tensor(dtype, {size}, 1))
            .output(out, {size})
            .in_out(random_tensor(dtype, {size}, 2));
        if (dtype == DType::f16) problem.only_on(Device::cuda);
        problem.expect_match(call, "scale of " + std::string(name_of(dtype)));
      }
    }
  }
}

TEST_F(Optimizer, ProductsOfBatches) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : kBatches) {
      const Dim side = std::min(shape[1], shape[2]);
      Problem gram(dtype);
      gram.input(random_tensor(dtype, shape, 1)).output(dtype, {shape[0], side, side});
      gram.expect_match([](Context& ctx, const Views& v) { matmul_gram(ctx, v[0], v[1]); },
                        "matmul_gram " + shape.str());
      Problem sum(dtype);
      sum.input(random_tensor(dtype, {shape[0], shape[1], shape[1]}, 2))
          .input(random_tensor(dtype, shape, 3))
          .input(random_tensor(dtype, shape, 4))
          .output(dtype, shape);
      sum.expect_match(
          [](Context& ctx, const Views& v) {
            matmul_add(ctx, {0.5F, -3.0F}, v[0], v[1], v[2], v[3]);
          },
          "matmul_add " + shape.str());
    }
  }
}

TEST_F(Optimizer, Orthogonalize) {
  for (const DType products : {DType::f32, DType::bf16}) {
    for (const Shape& shape : kBatches) {
      const Dim size = shape.numel();
      const Dim side = std::min(shape[1], shape[2]);
      const auto call = [&](Context& ctx, const Views& v) {
        // Five steps: the result ends in the second buffer.
        (void)orthogonalize(ctx, v[0], {v[1], v[2], v[3], v[4]});
      };
      Problem problem(products);
      problem.input(random_tensor(DType::f32, shape, 1))
          .output(products, {size})
          .output(products, {size})
          .output(products, {shape[0] * side * side})
          .output(products, {shape[0] * side * side});
      // Each step multiplies small singular values, and their rounding, by up to 3.4.
      problem.expect_match(call, "orthogonalize " + shape.str(), 10.0);
    }
  }
}

TEST_F(Optimizer, AdamWWithoutACopy) {
  const auto call = [](Context& ctx, const Views& v) {
    adamw(ctx, {}, struct_at<StepState>(v[1]), {v[2], v[3], {}, v[0]}, v[4], v[5]);
    cast(ctx, v[2], v[6]);  // compared too
  };
  update(777, DType::f32).expect_match(call, "adamw");
}

TEST_F(Optimizer, ASkippedStepChangesNothing) {
  state.skip = 1;
  const auto nothing = [](Context& /*ctx*/, const Views& /*v*/) {};
  const Problem problem = update(100, DType::bf16);
  const auto before = problem.on(Device::cpu, nothing);
  problem.on_each(update_call, [&](const Results& found) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(same_bits(found[i].view(), before[i].view())) << "operand " << i;
    }
  });
}

TEST_F(Optimizer, NormSquaredAndNonFinite) {
  for (const Dim size : {1, 1000, 70001, 5000011}) {
    Problem problem(DType::f32);
    problem.input(random_tensor(DType::f32, {size}, 1, 10.0))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 3));
    problem.expect_match([](Context& ctx, const Views& v) { add_norm_squared(ctx, v[0], v[1]); },
                         "add_norm_squared", 0.1);
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Tensor gradient = filled_tensor(DType::f32, {301}, 1);
  for (const std::size_t i : {0, 100, 300}) {
    gradient.view().data<float>()[i] = static_cast<float>(i == 100 ? NAN : kInfinity);
  }
  Problem problem(DType::f32);
  problem.input(std::move(gradient)).in_out(filled_tensor(DType::f32, {kSumCount}, 0));
  problem.on_each(
      [](Context& ctx, const Views& v) { add_norm_squared(ctx, v[0], v[1]); },
      [](const Results& found) { EXPECT_EQ(to_doubles(found[1].view())[kSumNonFinite], 3); });
}

/// One step of begin, sums from the reduction, finalize.
struct Finalized {
  StepState state;
  StepResult result;
  std::vector<double> sums;
};

Finalized finalized(const std::vector<Tensor>& out, std::int64_t step) {
  using Ring = std::array<StepResult, kResultRing>;
  const auto ring = from_bytes<Ring>(out[1].view());
  return {from_bytes<StepState>(out[0].view()), ring[static_cast<std::size_t>(step % kResultRing)],
          to_doubles(out[2].view())};
}

void expect_same(const Finalized& a, const Finalized& b) {
  constexpr double kWithin = 1e-6;
  EXPECT_EQ(a.state.input.step, b.state.input.step);
  EXPECT_EQ(a.state.adam_step, b.state.adam_step);
  EXPECT_EQ(a.state.gradient_scale, b.state.gradient_scale);
  EXPECT_EQ(a.state.loss_scale, b.state.loss_scale);
  EXPECT_NEAR(a.state.clip_scale, b.state.clip_scale, kWithin * b.state.clip_scale);
  EXPECT_NEAR(a.state.bias_correction1, b.state.bias_correction1, kWithin);
  EXPECT_NEAR(a.state.bias_correction2, b.state.bias_correction2, kWithin);
  EXPECT_EQ(a.state.skip, b.state.skip);
  EXPECT_EQ(a.state.good_steps, b.state.good_steps);
  EXPECT_EQ(a.state.skipped_steps, b.state.skipped_steps);
  EXPECT_EQ(a.result.step, b.result.step);
  EXPECT_EQ(a.result.tokens, b.result.tokens);
  EXPECT_EQ(a.result.correct, b.result.correct);
  EXPECT_EQ(a.result.balance_sum, b.result.balance_sum);
  EXPECT_EQ(a.result.router_z_sum, b.result.router_z_sum);
  EXPECT_EQ(a.result.router_entropy_sum, b.result.router_entropy_sum);
  EXPECT_EQ(a.result.rows_beyond, b.result.rows_beyond);
  EXPECT_EQ(a.result.weights, b.result.weights);
  EXPECT_EQ(a.result.kl_sum, b.result.kl_sum);
  EXPECT_EQ(a.result.marked, b.result.marked);
  EXPECT_EQ(a.result.learning_rate, b.result.learning_rate);
  EXPECT_EQ(a.result.loss_scale, b.result.loss_scale);
  EXPECT_EQ(a.result.skipped, b.result.skipped);
  EXPECT_EQ(a.result.stop, b.result.stop);
  if (b.result.skipped == 1) return;
  EXPECT_NEAR(a.result.loss_sum, b.result.loss_sum, kWithin * b.result.loss_sum);
  EXPECT_NEAR(a.result.gradient_norm, b.result.gradient_norm, kWithin * b.result.gradient_norm);
}

TEST_F(Optimizer, StepsAreJudgedAsByTheOracle) {
  struct Case {
    double norm_squared, non_finite, loss;
    FinalizeConstants constants;
    std::int32_t good_steps;
    float stop;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<Case> cases = {
      {16, 0, 7, {}, 0, 0},
      {16, 0, 7, {.clip_norm = 1}, 0, 1},
      {0.25, 0, 7, {.clip_norm = 1, .beta1 = 0.9F, .beta2 = 0.999F}, 5, 0},
      {16, 2, 7, {.clip_norm = 1}, 5, 0},
      {kInfinity, 0, 7, {.scale_loss = true}, 5, 0},
      {16, 0, kInfinity, {.scale_loss = true}, 5, 0},
      {16, 0, 7, {.scale_loss = true, .growth_interval = 6}, 5, 0},
      {16, 0, 7, {.scale_loss = true}, 5, 0}};
  for (const Case& c : cases) {
    StepState before;
    before.loss_scale = 1024;
    before.adam_step = 12345;
    before.good_steps = c.good_steps;
    const StepInput input = {7, 0.125F, 0.5F, 0.25F, c.stop};
    std::vector<double> sums = {
        c.norm_squared, c.non_finite, c.loss, 5, 2, 1, 0.25, 3, 6, 9, 4, 8, 12, 14};
    sums.push_back(static_cast<double>(c.stop));
    Tensor reduced = tensor_of(DType::f32, {kSumCount}, sums);
    Problem problem(DType::f32);
    problem.fixed_output(bytes_of(before))
        .fixed_output(bytes_of(std::array<StepResult, kResultRing>{}))
        .output(DType::f32, {kSumCount})
        .input(std::move(reduced));
    const auto call = [&](Context& ctx, const Views& v) {
      begin_step(ctx, input, struct_at<StepState>(v[0]), v[2]);
      finalize_step(ctx, c.constants, v[3], struct_at<StepState>(v[0]),
                    struct_at<StepResult>(v[1]));
    };
    const auto oracle = finalized(problem.on_oracle(call), input.step);
    problem.on_each(call, [&](const Results& results) {
      const auto found = finalized(results, input.step);
      expect_same(found, oracle);
      EXPECT_EQ(found.sums, oracle.sums);
    });
  }
}

}  // namespace
}  // namespace hyperslab::ops
