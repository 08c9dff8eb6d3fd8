// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "hyperslab/optim/schedule.hpp"

namespace hyperslab::optim {
namespace {

ScheduleConfig schedule(ScheduleKind name, std::int64_t warmup, double final_fraction) {
  ScheduleConfig config;
  config.name = name;
  config.warmup_steps = warmup;
  config.final_fraction = final_fraction;
  return config;
}

TEST(Schedule, WarmsUpInAStraightLine) {
  for (const ScheduleKind name :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    const ScheduleConfig config = schedule(name, 10, 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 1, 100), 0.2) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 5, 100), 1.0) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 10, 100), 2.0) << static_cast<int>(name);
  }
}

TEST(Schedule, EndsExactlyAtTheLastStep) {
  for (const ScheduleKind name : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    const ScheduleConfig config = schedule(name, 10, 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 100, 100), 0.2) << static_cast<int>(name);
    EXPECT_GT(learning_rate(config, 2.0, 99, 100), 0.2) << static_cast<int>(name);
  }
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::constant, 10, 0.1), 2.0, 100, 100), 2.0);
}

TEST(Schedule, HandValuesHalfWay) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::linear, 0, 0.0), 1.0, 50, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::cosine, 0, 0.0), 1.0, 50, 100), 0.5);
  EXPECT_NEAR(learning_rate(schedule(ScheduleKind::cosine, 0, 0.0), 1.0, 25, 100),
              0.5 * (1 + std::cos(M_PI / 4)), 1e-15);
  // The last fifth of 100 steps decays: nothing until 80, half at 90.
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::wsd, 0, 0.0), 1.0, 80, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::wsd, 0, 0.0), 1.0, 90, 100), 0.5);
}

TEST(Schedule, DecayOfWsdTakesAShareOfTheWholeRunAfterAWarmUpToo) {
  const ScheduleConfig config = schedule(ScheduleKind::wsd, 20, 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1.0, 80, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1.0, 90, 100), 0.5);
}

TEST(Schedule, WarmUpOverTheWholeRunReachesThePeak) {
  for (const ScheduleKind name :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    for (const std::int64_t steps : {1, 10, 100}) {
      EXPECT_DOUBLE_EQ(learning_rate(schedule(name, steps, 0.1), 1.0, steps, steps), 1.0)
          << static_cast<int>(name) << ", " << steps;
    }
  }
}

TEST(Traits, AreOfEveryOptimizerOnce) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    EXPECT_EQ(std::ranges::count(kOptimizerTraits, kind, &OptimizerTraits::kind), 1);
  }
  EXPECT_EQ(traits_of(OptimizerKind::muon).name, "muon");
}

TEST(Decay, ActsOnMatricesAndByChoiceOnTables) {
  OptimizerConfig config;
  EXPECT_TRUE(decays(config, param::Role::matrix));
  EXPECT_TRUE(decays(config, param::Role::embedding));
  EXPECT_FALSE(decays(config, param::Role::norm));
  EXPECT_FALSE(decays(config, param::Role::bias));
  config.decay_embeddings = false;
  EXPECT_FALSE(decays(config, param::Role::embedding));
  config.decay_norms_and_biases = true;
  EXPECT_TRUE(decays(config, param::Role::norm));
  EXPECT_TRUE(decays(config, param::Role::bias));
  EXPECT_FALSE(decays(config, param::Role::embedding));
}

/// A small group with its optimizer.
class Optimized {
 public:
  explicit Optimized(OptimizerKind name, double width_ratio = 1, const Shape& matrix = {5, 7})
      : store_({}, [](param::Role) { return true; }, {}, {.width_ratio = width_ratio}) {
    store_.begin_unit();
    store_.declare({"matrix", matrix, param::Role::matrix, param::Init::normal, 0.1F});
    store_.declare({"norm", {7}, param::Role::norm, param::Init::ones, 0});
    store_.begin_unit();
    store_.declare({"other", {3, 3}, param::Role::matrix, param::Init::normal, 0.1F});
    store_.lay_out(1 << 20);
    const Dim size = store_.trained().flat_size();
    const param::StateView masters = {arena_.take(DType::f32, {size}, "masters")};
    store_.trained().bind({.master = masters, .value = masters, .gradients = {}});
    OptimizerConfig config;
    config.name = name;
    optimizer = make_optimizer(config, store_.trained(), {false, arena_});
    optimizer->initialize(ctx_);
  }
  /// One update with a gradient of the elements' offsets in the flat space, all masters at 1.
  std::vector<float> updated() {
    std::vector<float> gradient(static_cast<std::size_t>(store_.trained().flat_size()));
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 11);
    return updated(gradient);
  }
  std::vector<float> updated(const std::vector<float>& gradient) {
    const param::StateView gradients = {
        arena_.take(DType::f32, {std::ssize(gradient)}, "gradients")};
    std::ranges::copy(gradient, gradients.data.data<float>());
    ops::fill(ctx_, 1, store_.trained().master().data);
    ops::StepState state;
    state.input.learning_rate = 0.5F;
    optimizer->update_whole(ctx_, &state, gradients);
    optimizer->update(ctx_, &state, gradients, store_.trained().all());
    const auto masters = store_.trained().master().data.span<float>();
    return {masters.begin(), masters.end()};
  }
  [[nodiscard]] Dim flat_size() const { return store_.trained().flat_size(); }
  [[nodiscard]] const param::Param& param(std::size_t index) const {
    return store_.params()[index];
  }
  std::unique_ptr<Optimizer> optimizer;

 private:
  param::ParamStore store_;
  Context ctx_{Device::cpu, 4096};
  Arena arena_{"parameters", Device::cpu, 16384};
};

TEST(Optimizer, TableOfDecaysFollowsTheParameters) {
  const Optimized adamw(OptimizerKind::adamw);

  // 35 elements take two granules, 7 take one, 9 take one; the rest of the bucket is padding.
  const auto decay = adamw.optimizer->decay().data.span<float>();
  const std::vector<float> expected = {0.1F, 0.1F, 0.0F, 0.1F};
  EXPECT_EQ(std::vector<float>(decay.begin(), decay.begin() + 4), expected);
  for (std::size_t i = 4; i < decay.size(); ++i) EXPECT_EQ(decay[i], 0.0F);
}

TEST(Optimizer, TableOfRatesFollowsTheParametrization) {
  EXPECT_FALSE(Optimized(OptimizerKind::adamw).optimizer->rate());
  EXPECT_FALSE(Optimized(OptimizerKind::muon).optimizer->rate());
  const Optimized wide(OptimizerKind::adamw, 4);

  const auto rate = wide.optimizer->rate().data.span<float>();
  const auto decay = wide.optimizer->decay().data.span<float>();
  EXPECT_EQ(std::vector<float>(rate.begin(), rate.begin() + 4),
            (std::vector<float>{0.25F, 0.25F, 1, 0.25F}));
  EXPECT_EQ(std::vector<float>(decay.begin(), decay.begin() + 4),
            (std::vector<float>{0.4F, 0.4F, 0, 0.4F}));
  for (std::size_t i = 4; i < rate.size(); ++i) EXPECT_EQ(rate[i], 1.0F);
}

/// In a model of four times the base's width the direction of matrices is this share of that in the
/// base's, while the share that a step takes of a weight stays.
void expect_matrices_to_move(OptimizerKind kind, float share) {
  Optimized narrow(kind);
  Optimized wide(kind, 4);
  const std::vector<float> of_narrow = narrow.updated();
  const std::vector<float> of_wide = wide.updated();

  for (const std::size_t index : {0, 1, 2}) {
    const param::Param& param = wide.param(index);
    const bool is_norm = param.role == param::Role::norm;
    const float decayed = is_norm ? 1.0F : 1 - 0.5F * 0.1F;
    double moved = 0;
    for (Dim i = param.flat_begin; i < param.flat_begin + param.numel(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_NEAR(of_wide[at] - decayed, (is_norm ? 1 : share) * (of_narrow[at] - decayed), 1e-6)
          << param.name;
      moved += std::abs(of_wide[at] - decayed);
    }
    EXPECT_GT(moved, 0.01 * static_cast<double>(param.numel())) << param.name;
  }
}

TEST(Optimizer, MatricesOfAWideModelMoveLessAndDecayAlike) {
  expect_matrices_to_move(OptimizerKind::adamw, 0.25F);
  expect_matrices_to_move(OptimizerKind::muon, 0.5F);  // the root of the width
  EXPECT_FALSE(Optimized(OptimizerKind::muon, 4).optimizer->rate());
}

TEST(Optimizer, SgdHasOneRateForAllParameters) {
  EXPECT_THROW(Optimized(OptimizerKind::sgd, 4), Error);
}

TEST(Optimizer, NamesItsStateAsPyTorchDoes) {
  const auto names = [](OptimizerKind optimizer) {
    std::vector<std::string> out;
    for (const Optimizer::State& state : Optimized(optimizer).optimizer->state()) {
      out.push_back(state.name);
      EXPECT_FALSE(state.values.sharded);
    }
    return out;
  };
  EXPECT_EQ(names(OptimizerKind::adamw), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(OptimizerKind::sgd), (std::vector<std::string>{"momentum_buffer"}));
  EXPECT_EQ(names(OptimizerKind::muon), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

/// With momentum m the first direction is (1 - m^2) g, and its length does not matter.
TEST(Muon, TakesMatricesAndLeavesTheRestToAdamW) {
  Optimized adamw(OptimizerKind::adamw);
  Optimized muon(OptimizerKind::muon);
  const std::vector<float> by_adamw = adamw.updated();
  const std::vector<float> by_muon = muon.updated();

  const param::Param& norm = muon.param(1);
  for (Dim i = norm.flat_begin; i < norm.flat_begin + norm.numel(); ++i) {
    EXPECT_EQ(by_muon[static_cast<std::size_t>(i)], by_adamw[static_cast<std::size_t>(i)]);
  }
  for (const std::size_t index : {0, 2}) {
    const param::Param& matrix = muon.param(index);
    double squares = 0;
    for (Dim i = matrix.flat_begin; i < matrix.flat_begin + matrix.numel(); ++i) {
      const double change = by_muon[static_cast<std::size_t>(i)] - (1 - 0.5 * 0.1);
      squares += change * change;
    }
    const double side = static_cast<double>(std::max(matrix.part.count[0], matrix.part.count[1]));
    const double rank = static_cast<double>(std::min(matrix.part.count[0], matrix.part.count[1]));
    // Between one and all singular values of about 1, times the learning rate and the scale.
    const double length = std::sqrt(squares) / (0.5 * 0.2 * std::sqrt(side));
    EXPECT_GT(length, 0.6) << matrix.name;
    EXPECT_LT(length, 1.25 * std::sqrt(rank)) << matrix.name;
  }
}

/// The gradient has two orthogonal lines of 32 elements, +3 or -3 in one and +4 or -4 in the other,
/// so the singular values of the normalized gradient are 0.6 and 0.8. Five steps of
/// s <- 3.4445 s - 4.7750 s^3 + 2.0315 s^5, worked out in Python, make of them kLines. An element
/// of a line is its singular value / sqrt(32), and the scale is 0.2 sqrt(32), of the longer side.
TEST(Muon, ScaleIsOfTheLongerSideOfAMatrix) {
  constexpr std::array<double, 2> kLines = {0.722876168617117, 1.1192039299160428};
  for (const bool wide : {true, false}) {
    Optimized muon(OptimizerKind::muon, 1, wide ? Shape{2, 32} : Shape{32, 2});
    const auto begin = static_cast<std::size_t>(muon.param(0).flat_begin);
    const auto at = [&](std::size_t line, std::size_t i) {
      return begin + (wide ? line * 32 + i : i * 2 + line);
    };
    const auto sign = [](std::size_t line, std::size_t i) { return line * i % 2 == 0 ? 1 : -1; };
    std::vector<float> gradient(static_cast<std::size_t>(muon.flat_size()));
    for (std::size_t i = 0; i < 32; ++i) {
      gradient[at(0, i)] = 3;
      gradient[at(1, i)] = static_cast<float>(4 * sign(1, i));
    }

    const std::vector<float> updated = muon.updated(gradient);

    for (std::size_t line = 0; line < 2; ++line) {
      for (std::size_t i = 0; i < 32; ++i) {
        // A learning rate of 0.5 times a weight decay of 0.1, and 0.5 times 0.2 of the direction.
        const double expected = 0.95 - 0.1 * kLines.at(line) * sign(line, i);
        EXPECT_NEAR(updated[at(line, i)], expected, 1e-4) << "wide " << wide << " line " << line;
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::optim
