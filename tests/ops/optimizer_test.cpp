// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/optimizer.hpp"

#include <bit>
#include <cmath>

#include "backend.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace cpu {

/// The update of an optimizer that nothing else knows of.
void step_back(Context& /*ctx*/, float factor, const StepState* /*state*/,
               const UpdateOperands& operands) {
  operands.master.data<float>()[0] -= factor * operands.gradient.data<float>()[0];
}

}  // namespace cpu
namespace {

using namespace hyperslab::test;

// An update knows bf16 by its operands, without a list, and the CPU may have it alone.
TEST(OptimizerOp, OfTheCpuAloneIsItsFunctionAndNothingElse) {
  static_assert(cpu::kTakesBf16<cpu::adamw> && cpu::kTakesBf16<cpu::sgd>);
  static_assert(cpu::kTakesBf16<cpu::step_back> && !cpu::kTakesBf16<cpu::muon_direction>);
  static_assert(!cpu::kTakesBf16<cpu::add_norm_forward>);
  Context ctx(Device::cpu);
  Tensor master = tensor_of(DType::f32, {1}, {3});
  const Tensor gradient = tensor_of(DType::f32, {1}, {2});
  const StepState state;
  UpdateOperands operands;
  operands.master = master.view();
  operands.gradient = gradient.view();

  dispatch<nullptr, cpu::step_back>(ctx, 0.5F, &state, operands);

  EXPECT_EQ(master.view().data<float>()[0], 2);
}

class Optimizer : public OpsTest {
 protected:
  AdamWConstants constants{.beta1 = 0.5F, .beta2 = 0.75F, .eps = 0.125F};
  StepState state{.input = {.learning_rate = 0.25F},
                  .clip_scale = 0.5F,
                  .bias_correction1 = 0.75F,
                  .bias_correction2 = 0.4375F};
};

/// The four flat spans of an update.
struct Flat {
  Tensor decay, master, gradient, exp_avg, exp_avg_sq;
  Tensor rate;  ///< absent

  Flat(DType dtype, Dim size)
      : decay(filled_tensor(DType::f32, {(size + kDecayGranule - 1) / kDecayGranule}, 0)),
        master(converted(random_tensor(DType::f32, {size}, 1).view(), dtype)),
        gradient(converted(random_tensor(DType::f32, {size}, 2).view(), dtype)),
        exp_avg(converted(random_tensor(DType::f32, {size}, 3).view(), dtype)),
        exp_avg_sq(converted(random_tensor(DType::f32, {size}, 4).view(), dtype)) {
    auto values = to_doubles(exp_avg_sq.view());
    for (double& v : values) v = v * v;
    exp_avg_sq = converted(tensor_of(DType::f32, {size}, values).view(), dtype);
  }

  void update(Context& ctx, const AdamWConstants& constants, const StepState& state,
              View value = {}) {
    adamw(ctx, constants, &state,
          {master.view(), gradient.view(), value, decay.view(), rate.view()}, exp_avg.view(),
          exp_avg_sq.view());
  }
};

TEST_F(Optimizer, AdamwByHand) {
  Tensor master = tensor_of(DType::f64, {1}, {2});
  const Tensor gradient = tensor_of(DType::f64, {1}, {4});
  Tensor exp_avg = tensor_of(DType::f64, {1}, {1});
  Tensor exp_avg_sq = tensor_of(DType::f64, {1}, {3});
  const Tensor decay = tensor_of(DType::f32, {1}, {0.5});

  adamw(ctx, constants, &state, {master.view(), gradient.view(), {}, decay.view()}, exp_avg.view(),
        exp_avg_sq.view());

  // g = 2, m = 0.5 + 1 = 1.5, v = 2.25 + 1 = 3.25
  const double m_hat = 1.5 / 0.75;
  const double v_hat = 3.25 / 0.4375;
  expect_values(exp_avg.view(), {1.5}, 1e-14);
  expect_values(exp_avg_sq.view(), {3.25}, 1e-14);
  expect_values(master.view(), {2 - 0.25 * (m_hat / (std::sqrt(v_hat) + 0.125) + 0.5 * 2)}, 1e-14);
}

TEST_F(Optimizer, SgdByHand) {
  Tensor master = tensor_of(DType::f64, {1}, {2});
  const Tensor gradient = tensor_of(DType::f64, {1}, {4});
  Tensor buffer = tensor_of(DType::f64, {1}, {1});
  const Tensor decay = tensor_of(DType::f32, {1}, {0.5});
  Tensor value(Device::cpu, DType::f64, {1});

  sgd(ctx, 0.5F, &state, {master.view(), gradient.view(), value.view(), decay.view()},
      buffer.view());

  // g = 4 clip_scale + 0.5 * 2 = 3, b = 0.5 * 1 + 3
  expect_values(buffer.view(), {3.5}, 1e-14);
  expect_values(master.view(), {2 - 0.25 * 3.5}, 1e-14);
  expect_values(value.view(), {2 - 0.25 * 3.5}, 1e-14);
}

/// Over steps of constant gradients the update is the closed form of a geometric sum.
TEST_F(Optimizer, SgdGathersMomentum) {
  constexpr Dim kSize = 100;
  Flat flat(DType::f64, kSize);
  Tensor buffer = filled_tensor(DType::f64, {kSize}, 0);
  const std::vector<double> before = to_doubles(flat.master.view());
  for (int step = 0; step < 5; ++step) {
    sgd(ctx, 0.5F, &state, {flat.master.view(), flat.gradient.view(), {}, flat.decay.view()},
        buffer.view());
  }
  const double sum = 1 + 1.5 + 1.75 + 1.875 + 1.9375;  // of the buffer, in gradients
  std::vector<double> expected = to_doubles(flat.gradient.view());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = before[i] - 0.25 * sum * state.clip_scale * expected[i];
  }
  expect_values(flat.master.view(), expected, 1e-13);
}

TEST_F(Optimizer, EveryGranuleHasItsDecay) {
  Flat flat(DType::f32, 150);
  const Flat before(DType::f32, 150);
  const std::vector<double> decays = {0.0, 0.5, 0.5, 0.25, 0.125};
  flat.decay = tensor_of(DType::f32, {5}, decays);

  flat.update(ctx, constants, state);

  for (Dim i = 0; i < 150; ++i) {
    const double decay = decays[static_cast<std::size_t>(i / kDecayGranule)];
    const auto at = [i](const Tensor& t) { return static_cast<double>(t.view().data<float>()[i]); };
    const double direction =
        at(flat.exp_avg) / 0.75 / (std::sqrt(at(flat.exp_avg_sq) / 0.4375) + 0.125);
    EXPECT_NEAR(at(flat.master), at(before.master) - 0.25 * (direction + decay * at(before.master)),
                2e-6)
        << i;
  }
}

TEST_F(Optimizer, EveryGranuleHasItsRate) {
  const std::vector<double> decays = {0.0, 0.5, 0.5, 0.25, 0.125};
  const std::vector<double> rates = {1, 0.25, 2, 2, 0};
  for (const DType dtype : {DType::f32, DType::f64}) {
    Flat flat(dtype, 150);
    const Flat before(dtype, 150);
    flat.decay = tensor_of(DType::f32, {5}, decays);
    flat.rate = tensor_of(DType::f32, {5}, rates);

    flat.update(ctx, constants, state);

    const auto was = to_doubles(before.master.view());
    const auto is = to_doubles(flat.master.view());
    const auto m = to_doubles(flat.exp_avg.view());
    const auto v = to_doubles(flat.exp_avg_sq.view());
    for (std::size_t i = 0; i < 150; ++i) {
      const double decay = decays[i / kDecayGranule];
      const double rate = rates[i / kDecayGranule];
      const double direction = m[i] / 0.75 / (std::sqrt(v[i] / 0.4375) + 0.125);
      EXPECT_NEAR(is[i], was[i] - 0.25 * rate * (direction + decay * was[i]),
                  dtype == DType::f32 ? 4e-6 : 1e-12)
          << i;
    }
    EXPECT_EQ(is.back(), was.back()) << "a rate of zero leaves weights alone";
    EXPECT_NE(m.back(), to_doubles(before.exp_avg.view()).back()) << "and no moments";
  }
}

TEST_F(Optimizer, RatesOfOneChangeNoBit) {
  for (const DType moment : {DType::f32, DType::bf16}) {
    Flat without(DType::f32, 20011);
    Flat with(DType::f32, 20011);
    with.rate = filled_tensor(DType::f32, {with.decay.view().numel()}, 1);
    for (Flat* flat : {&without, &with}) {
      flat->exp_avg = converted(flat->exp_avg.view(), moment);
      flat->exp_avg_sq = converted(flat->exp_avg_sq.view(), moment);
      flat->update(ctx, constants, state);
    }

    EXPECT_TRUE(same_bits(with.master.view(), without.master.view()));
    EXPECT_TRUE(same_bits(with.exp_avg.view(), without.exp_avg.view()));
  }
}

TEST_F(Optimizer, ACautiousDecayLeavesWeightsAloneThatGrow) {
  const std::vector<double> weights = {2, 2, -2, -2, 0};
  const std::vector<double> gradients = {4, -4, 4, -4, 4};
  Tensor master = tensor_of(DType::f64, {5}, weights);
  const Tensor gradient = tensor_of(DType::f64, {5}, gradients);
  Tensor exp_avg = filled_tensor(DType::f64, {5}, 0);
  Tensor exp_avg_sq = filled_tensor(DType::f64, {5}, 0);
  const Tensor decay = tensor_of(DType::f32, {1}, {0.5});
  constants.decay_rule = DecayRule::cautious;

  adamw(ctx, constants, &state, {master.view(), gradient.view(), {}, decay.view()}, exp_avg.view(),
        exp_avg_sq.view());

  // g = 2, m = 1, v = 1, of the gradient's sign
  const double direction = 1 / 0.75 / (std::sqrt(1 / 0.4375) + 0.125);
  expect_values(master.view(),
                {2 - 0.25 * (direction + 0.5 * 2), 2 + 0.25 * direction, -2 - 0.25 * direction,
                 -2 + 0.25 * (direction + 0.5 * 2), -0.25 * direction},
                1e-14);
}

TEST_F(Optimizer, MomentsInBf16AreThoseOfTheOracleRounded) {
  const Dim size = 20011;
  Flat narrow(DType::f32, size);
  Flat again(DType::f32, size);
  for (Flat* flat : {&narrow, &again}) {
    flat->exp_avg = converted(flat->exp_avg.view(), DType::bf16);
    flat->exp_avg_sq = converted(flat->exp_avg_sq.view(), DType::bf16);
  }
  Flat oracle(DType::f64, size);
  oracle.exp_avg = converted(narrow.exp_avg.view(), DType::f64);
  oracle.exp_avg_sq = converted(narrow.exp_avg_sq.view(), DType::f64);

  narrow.update(ctx, constants, state);
  again.update(ctx, constants, state);
  oracle.update(ctx, constants, state);

  expect_matches_oracle(narrow.master.view(), oracle.master.view(), "master");
  EXPECT_TRUE(same_bits(narrow.exp_avg.view(), again.exp_avg.view()));
  for (const auto& [found, expected] :
       {std::pair(narrow.exp_avg.view(), oracle.exp_avg.view()),
        std::pair(narrow.exp_avg_sq.view(), oracle.exp_avg_sq.view())}) {
    const std::vector<double> rounded = to_doubles(found);
    const std::vector<double> exact = to_doubles(expected);
    double error = 0;
    double bias = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double relative = (rounded[i] - exact[i]) / std::fabs(exact[i]);
      error = std::max(error, std::fabs(relative));
      bias += relative;
    }
    EXPECT_LT(error, 0x1p-7) << "to one of the two neighbours";
    EXPECT_GT(error, 0x1p-8) << "not always to the nearest";
    EXPECT_NEAR(bias / static_cast<double>(size), 0, 5e-5) << "up as often as down";
  }
}

/// Rounding to nearest would leave a second moment of 1 where it is.
TEST_F(Optimizer, MomentsInBf16FollowSmallChanges) {
  constexpr Dim kSize = 4096;
  constexpr int kUpdates = 500;
  Flat flat(DType::f32, kSize);
  flat.gradient = filled_tensor(DType::f32, {kSize}, 0);
  flat.exp_avg = filled_tensor(DType::bf16, {kSize}, 0);
  flat.exp_avg_sq = filled_tensor(DType::bf16, {kSize}, 1);
  constants.beta2 = 0.999F;
  for (int update = 1; update <= kUpdates; ++update) {
    state.adam_step = update;
    flat.update(ctx, constants, state);
  }
  double mean = 0;
  for (const double v : to_doubles(flat.exp_avg_sq.view())) mean += v / kSize;
  EXPECT_NEAR(mean, std::pow(0.999, kUpdates), 0.01);
}

/// As gains of norms before the first update.
TEST_F(Optimizer, MomentsInBf16OfEqualWeightsAreRoundedEachForItself) {
  constexpr Dim kSize = 20000;
  Flat flat(DType::f32, kSize);
  flat.master = filled_tensor(DType::f32, {kSize}, 1);
  flat.exp_avg = filled_tensor(DType::bf16, {kSize}, 0);
  flat.exp_avg_sq = filled_tensor(DType::bf16, {kSize}, 0);
  const std::vector<double> gradients = to_doubles(flat.gradient.view());

  flat.update(ctx, constants, state);

  double up = 0;
  double expected = 0;
  const std::vector<double> moments = to_doubles(flat.exp_avg.view());
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const auto exact = static_cast<float>(0.5 * 0.5 * gradients[i]);  // 1 - beta1, clip_scale
    const auto bits = std::bit_cast<std::uint32_t>(exact);
    expected += static_cast<double>(bits & 0xFFFFU) / 0x1p16;
    up += std::fabs(moments[i]) > std::fabs(exact) ? 1 : 0;
  }
  EXPECT_NEAR(up / kSize, expected / kSize, 0.02);
}

TEST_F(Optimizer, RefusesMomentsOfUnequalDtypes) {
  Flat flat(DType::f32, 32);
  flat.exp_avg = filled_tensor(DType::bf16, {32}, 0);
  expect_error_naming("adamw exp_avg_sq", [&] { flat.update(ctx, constants, state); });
  Flat wide(DType::f64, 32);
  wide.exp_avg = filled_tensor(DType::bf16, {32}, 0);
  wide.exp_avg_sq = filled_tensor(DType::bf16, {32}, 0);
  expect_error_naming("adamw exp_avg", [&] { wide.update(ctx, constants, state); });
}

TEST_F(Optimizer, WritesTheComputeCopy) {
  Flat flat(DType::f32, 20);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Tensor value = filled_tensor(dtype, {20}, 77);

    flat.update(ctx, constants, state, value.view());

    expect_close(value.view(), converted(flat.master.view(), dtype).view(), "value", 1e-9);
  }
}

TEST_F(Optimizer, NormSquaredAddsToTheSums) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::vector<double> values(150000, 0.5);
    values[149999] = -3;
    const Tensor gradient = tensor_of(dtype, {150000}, values);
    Tensor sums = filled_tensor(dtype, {kSumCount}, 1);

    add_norm_squared(ctx, gradient.view(), sums.view());

    std::vector<double> expected(kSumCount, 1);
    expected[kSumNormSquared] = 1 + 149999 * 0.25 + 9;
    expect_values(sums.view(), expected, 4e-3);
  }
}

TEST_F(Optimizer, NormSquaredIsAsExactAsTheSumCanHold) {
  const Tensor gradient = random_tensor(DType::f32, {1000003}, 5);
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
  double expected = 0;
  for (const double v : to_doubles(gradient.view())) expected += v * v;

  add_norm_squared(ctx, gradient.view(), sums.view());

  EXPECT_NEAR(to_doubles(sums.view())[kSumNormSquared], expected, 1e-12 * expected);
}

TEST_F(Optimizer, WrongOperandsAreNamed) {
  Flat flat(DType::f32, 6);
  Flat short_table(DType::f32, 40);
  short_table.decay = filled_tensor(DType::f32, {1}, 0);
  expect_error_naming("adamw decay", [&] { short_table.update(ctx, constants, state); });
  Flat short_rates(DType::f32, 40);
  short_rates.rate = filled_tensor(DType::f32, {1}, 1);
  expect_error_naming("adamw rate", [&] { short_rates.update(ctx, constants, state); });
  const Tensor rate = filled_tensor(DType::f32, {1}, 1);
  expect_error_naming("sgd rate", [&] {
    sgd(ctx, 0.5F, &state,
        {flat.master.view(), flat.gradient.view(), {}, flat.decay.view(), rate.view()},
        flat.exp_avg.view());
  });
  Tensor value = filled_tensor(DType::bf16, {5}, 0);
  expect_error_naming("adamw value", [&] { flat.update(ctx, constants, state, value.view()); });
  flat.exp_avg = filled_tensor(DType::f64, {6}, 0);
  expect_error_naming("adamw exp_avg", [&] { flat.update(ctx, constants, state); });
  expect_error_naming("add_norm_squared sums", [&] {
    add_norm_squared(ctx, flat.master.view(), flat.master.view().slice(0, 5));
  });
}

}  // namespace
}  // namespace hyperslab::ops
