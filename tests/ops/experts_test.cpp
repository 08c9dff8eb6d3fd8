// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/experts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "finite_difference.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "ops_test.hpp"
#include "quantized_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class ExpertsOps : public OpsTest {};

/// A router's inputs and outputs, of B samples of T tokens.
struct Routed {
  RouterRule rule;
  Dim B;
  Dim T;
  Tensor logits, experts, weights, statistics, sums, loads;
  StepState state;

  Routed(const RouterRule& with, DType dtype, Dim samples, Dim tokens, std::uint64_t seed = 5)
      : rule(with),
        B(samples),
        T(tokens),
        logits(converted(random_tensor(DType::f32, {B * T, with.count}, seed).view(), dtype)),
        experts(Device::cpu, DType::i32, {B * T, with.active}),
        weights(poisoned(dtype, {B * T, with.active})),
        statistics(poisoned(dtype, {B, router_statistics_width(with.count)})),
        sums(filled_tensor(dtype, {kSumCount}, 0)),
        loads(filled_tensor(dtype, {with.count}, 0)) {
    state.input.inverse_samples = 0.25F;
    state.loss_scale = 2;
  }
  void route(Context& ctx, CView bias = {}) {
    ops::route(ctx, rule, logits.view(), bias, experts.view(), weights.view());
  }
  void count(Context& ctx) {
    router_statistics(ctx, rule, logits.view(), experts.view(), statistics.view());
    std::memset(sums.view().raw(), 0, sums.view().bytes());
    std::memset(loads.view().raw(), 0, loads.view().bytes());
    add_router_statistics(ctx, rule, {.tokens = T}, statistics.view(), sums.view(), loads.view());
  }
  [[nodiscard]] std::vector<int> taken(Dim token) const {
    const auto* first = experts.view().data<std::int32_t>() + token * rule.active;
    return {first, first + rule.active};
  }
};

std::vector<double> softmax_of(const double* logits, Dim count) {
  std::vector<double> out(logits, logits + count);
  const double largest = *std::ranges::max_element(out);
  for (double& x : out) x = std::exp(x - largest);
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& x : out) x /= sum;
  return out;
}

TEST_F(ExpertsOps, ATokenTakesTheExpertsOfTheLargestScores) {
  Routed r({.count = 6, .active = 2}, DType::f64, 1, 9);
  r.route(ctx);

  for (Dim n = 0; n < 9; ++n) {
    const auto* logits = r.logits.view().data<double>() + n * 6;
    const std::vector<double> scores = softmax_of(logits, 6);
    std::vector<int> order(6);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
    std::vector<int> expected(order.begin(), order.begin() + 2);
    std::ranges::sort(expected);
    EXPECT_EQ(r.taken(n), expected);
    for (Dim k = 0; k < 2; ++k) {
      EXPECT_NEAR(r.weights.view().data<double>()[n * 2 + k],
                  scores[static_cast<std::size_t>(expected[static_cast<std::size_t>(k)])], 1e-14);
    }
  }
}

TEST_F(ExpertsOps, NormalizedWeightsSumToTheScale) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    Routed r({.count = 8, .active = 3, .score = score, .normalize = true, .scale = 2.5F},
             DType::f64, 2, 5);
    r.route(ctx);
    for (Dim n = 0; n < 10; ++n) {
      const auto* weights = r.weights.view().data<double>() + n * 3;
      EXPECT_NEAR(weights[0] + weights[1] + weights[2], 2.5, 1e-12);
    }
  }
}

/// Softmax over all, then the best, then normalized, is the softmax over the best alone.
TEST_F(ExpertsOps, NormalizingIsSoftmaxOverTheChosenOnes) {
  Routed r({.count = 7, .active = 3, .normalize = true}, DType::f64, 1, 6);
  r.route(ctx);
  for (Dim n = 0; n < 6; ++n) {
    std::vector<double> chosen;
    for (const int e : r.taken(n)) chosen.push_back(r.logits.view().data<double>()[n * 7 + e]);
    const std::vector<double> expected = softmax_of(chosen.data(), 3);
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(r.weights.view().data<double>()[n * 3 + static_cast<Dim>(k)], expected[k], 1e-14);
    }
  }
}

TEST_F(ExpertsOps, OfEqualScoresTheFirstExpertsAreTaken) {
  Routed r({.count = 5, .active = 2}, DType::f32, 1, 1);
  std::memset(r.logits.view().raw(), 0, r.logits.view().bytes());
  r.route(ctx);
  EXPECT_EQ(r.taken(0), (std::vector<int>{0, 1}));
}

TEST_F(ExpertsOps, ABiasChoosesAndDoesNotWeigh) {
  Routed r({.count = 4, .active = 1, .score = RouterScore::sigmoid}, DType::f64, 1, 1);
  const Tensor logits = tensor_of(DType::f64, {1, 4}, {2, 0, -1, 1});
  std::memcpy(r.logits.view().raw(), logits.view().raw(), logits.view().bytes());
  const Tensor bias = tensor_of(DType::f64, {4}, {0, 0, 3, 0});
  r.route(ctx, bias.view());
  EXPECT_EQ(r.taken(0), std::vector<int>{2});
  EXPECT_NEAR(*r.weights.view().data<double>(), 1 / (1 + std::exp(1)), 1e-15);
}

TEST_F(ExpertsOps, ATokenStaysInItsBestGroups) {
  Routed softmax({.count = 6, .active = 2, .groups = 3, .active_groups = 1}, DType::f64, 1, 1);
  Routed sigmoid(
      {.count = 6, .active = 2, .score = RouterScore::sigmoid, .groups = 3, .active_groups = 1},
      DType::f64, 1, 1);
  // The best expert is in the first group, the two best together are in the second.
  const Tensor logits = tensor_of(DType::f64, {1, 6}, {3, -9, 2, 2.5, 0, 2.9});
  for (Routed* r : {&softmax, &sigmoid}) {
    std::memcpy(r->logits.view().raw(), logits.view().raw(), logits.view().bytes());
    r->route(ctx);
  }
  EXPECT_EQ(softmax.taken(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(sigmoid.taken(0), (std::vector<int>{2, 3}));
}

TEST_F(ExpertsOps, StatisticsAndLossesAreTheirFormulas) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    Routed r({.count = 5, .active = 2, .score = score}, DType::f64, 3, 7);
    r.route(ctx);
    r.count(ctx);
    double balance = 0;
    double z = 0;
    double entropy = 0;
    std::vector<double> loads(5, 0);
    for (Dim b = 0; b < 3; ++b) {
      std::vector<double> counts(5, 0);
      std::vector<double> shares(5, 0);
      for (Dim n = b * 7; n < (b + 1) * 7; ++n) {
        const auto* logits = r.logits.view().data<double>() + n * 5;
        std::vector<double> scores = softmax_of(logits, 5);
        double sum = 0;
        for (int e = 0; e < 5; ++e) sum += std::exp(logits[e]);
        z += std::log(sum) * std::log(sum) / 7;
        if (score == RouterScore::sigmoid) {
          double all = 0;
          for (std::size_t e = 0; e < 5; ++e) all += scores[e] = 1 / (1 + std::exp(-logits[e]));
          for (double& s : scores) s /= all;
        }
        for (std::size_t e = 0; e < 5; ++e) shares[e] += scores[e] / 7;
        for (const double s : scores) entropy -= s * std::log(s) / 7;
        for (const int e : r.taken(n)) {
          counts[static_cast<std::size_t>(e)] += 1;
          loads[static_cast<std::size_t>(e)] += 1;
        }
      }
      for (std::size_t e = 0; e < 5; ++e) balance += 5 * counts[e] / (2 * 7) * shares[e];
    }
    EXPECT_NEAR(r.sums.view().data<double>()[kSumBalance], balance, 1e-12);
    EXPECT_NEAR(r.sums.view().data<double>()[kSumRouterZ], z, 1e-12);
    EXPECT_NEAR(r.sums.view().data<double>()[kSumRouterEntropy], entropy, 1e-12);
    EXPECT_EQ(to_doubles(r.loads.view()), loads);
  }
}

TEST_F(ExpertsOps, EqualLoadsAndScoresHaveABalanceOfOne) {
  Routed r({.count = 4, .active = 1}, DType::f64, 1, 4);
  const Tensor logits =
      tensor_of(DType::f64, {4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
  std::memcpy(r.logits.view().raw(), logits.view().raw(), logits.view().bytes());
  r.route(ctx);
  r.count(ctx);
  EXPECT_NEAR(r.sums.view().data<double>()[kSumBalance], 1, 1e-14);
}

TEST_F(ExpertsOps, ABiasMovesTowardsEqualLoadsByItsRate) {
  const Tensor loads = tensor_of(DType::f32, {4}, {7, 1, 4, 4});
  Tensor bias = tensor_of(DType::f32, {4}, {0.5, 0, -1, 2});
  StepState state;
  update_router_bias(ctx, 0.25F, loads.view(), &state, bias.view());
  EXPECT_EQ(to_doubles(bias.view()), (std::vector<double>{0.25, 0.25, -1, 2}));
  state.skip = 1;
  update_router_bias(ctx, 0.25F, loads.view(), &state, bias.view());
  EXPECT_EQ(to_doubles(bias.view()), (std::vector<double>{0.25, 0.25, -1, 2}));
}

TEST_F(ExpertsOps, LoadsOfAStepGoToItsPlaceInTheRing) {
  const Tensor loads = tensor_of(DType::f64, {2, 2}, {7, 1, 4, 5});
  Tensor ring = filled_tensor(DType::f64, {kResultRing, 2, 2}, -1);
  StepState state;
  state.input.step = kResultRing + 2;
  publish_loads(ctx, loads.view(), &state, ring.view());
  std::vector<double> expected(static_cast<std::size_t>(ring.view().numel()), -1);
  std::ranges::copy(to_doubles(loads.view()), expected.begin() + 8);
  EXPECT_EQ(to_doubles(ring.view()), expected);
}

/// Wang et al. 2024: loads become equal although the logits of some experts are larger.
TEST_F(ExpertsOps, ABiasLevelsASkewedRouterWithin200Steps) {
  constexpr Dim kTokens = 512;
  Routed r({.count = 8, .active = 2, .score = RouterScore::sigmoid}, DType::f64, 1, kTokens);
  auto* logits = r.logits.view().data<double>();
  for (Dim i = 0; i < kTokens * 8; ++i) logits[i] += 0.4 * static_cast<double>(i % 8);
  Tensor bias = filled_tensor(DType::f64, {8}, 0);
  const auto largest = [&] {
    r.route(ctx, bias.view());
    r.count(ctx);
    const std::vector<double> loads = to_doubles(r.loads.view());
    return *std::ranges::max_element(loads) * 8 / (2 * kTokens);
  };
  EXPECT_GT(largest(), 2);
  for (int step = 0; step < 200; ++step) {
    (void)largest();
    update_router_bias(ctx, 0.002F, r.loads.view(), &r.state, bias.view());
  }
  EXPECT_LT(largest(), 1.1);
}

TEST_F(ExpertsOps, OneExpertMayGetAllTokens) {
  Routed r({.count = 4, .active = 1}, DType::f64, 1, 6);
  for (Dim n = 0; n < 6; ++n) r.logits.view().data<double>()[n * 4 + 2] += 50;
  r.route(ctx);
  Tensor first(Device::cpu, DType::i32, {5});
  Tensor pairs(Device::cpu, DType::i32, {6});
  Tensor rows(Device::cpu, DType::i32, {6, 1});
  sort_by_expert(ctx, r.experts.view(), 0, first.view(), pairs.view(), rows.view());
  EXPECT_EQ(to_doubles(first.view()), (std::vector<double>{0, 0, 0, 6, 6}));

  const Tensor x = random_tensor(DType::f64, {6, 3}, 1);
  const Tensor w = random_tensor(DType::f64, {8, 3}, 2);
  Tensor y = poisoned(DType::f64, {6, 2});
  experts_forward(ctx, x.view(), w.view(), first.view(), y.view());
  Tensor alone = poisoned(DType::f64, {6, 2});
  linear_forward(ctx, x.view(), w.view().slice(4, 2), {}, alone.view());
  EXPECT_EQ(to_doubles(y.view()), to_doubles(alone.view()));
}

TEST_F(ExpertsOps, GradientsOfTheRouterAreThoseOfDifferences) {
  for (int i = 0; i < 8; ++i) {
    const RouterScore score = i % 2 == 0 ? RouterScore::softmax : RouterScore::sigmoid;
    Routed r({.count = 6, .active = 3, .score = score, .normalize = i % 4 < 2, .scale = 1.5F},
             DType::f64, 2, 5, 40 + static_cast<std::uint64_t>(i));
    const RouterLosses losses = {i < 4 ? 0.0F : 0.75F, i % 3 == 1 ? 0.5F : 0, 1, r.T};
    const Tensor dweights = random_tensor(DType::f64, {10, 3}, 9);
    const auto value = [&] {
      r.route(ctx);
      r.count(ctx);
      const auto* sums = r.sums.view().data<double>();
      return inner_product(dweights.view(), r.weights.view()) +
             0.5 * (static_cast<double>(losses.balance) * sums[kSumBalance] +
                    static_cast<double>(losses.z) * sums[kSumRouterZ]);
    };
    (void)value();
    Tensor dlogits = poisoned(DType::f64, {10, 6});
    route_backward(ctx, r.rule, r.logits.view(), r.experts.view(),
                   {dweights.view(), losses, r.statistics.view(), &r.state}, dlogits.view());
    expect_gradient("logits " + std::to_string(i), r.logits.view(), dlogits.view(), value, 1e-7,
                    1e-4);
  }
}

TEST_F(ExpertsOps, RowsAreOrderedByExpertAndThenByToken) {
  const Tensor experts = int_tensor({4, 2}, {0, 2, 2, 3, 0, 3, 2, 3});
  Tensor first(Device::cpu, DType::i32, {6});
  Tensor pairs(Device::cpu, DType::i32, {8});
  Tensor rows(Device::cpu, DType::i32, {4, 2});
  sort_by_expert(ctx, experts.view(), 0, first.view(), pairs.view(), rows.view());
  EXPECT_EQ(to_doubles(first.view()), (std::vector<double>{0, 2, 2, 5, 8, 8}));
  EXPECT_EQ(to_doubles(pairs.view()), (std::vector<double>{0, 4, 1, 2, 6, 3, 5, 7}));
  EXPECT_EQ(to_doubles(rows.view()), (std::vector<double>{0, 2, 3, 5, 1, 6, 4, 7}));
}

TEST_F(ExpertsOps, RowsOfSomeExpertsAloneAreOrdered) {
  const Tensor experts = int_tensor({4, 2}, {0, 2, 2, 3, 0, 3, 2, 3});
  Tensor first(Device::cpu, DType::i32, {3});
  Tensor pairs = int_tensor({4}, {9, 9, 9, 9});
  Tensor rows(Device::cpu, DType::i32, {4, 2});
  sort_by_expert(ctx, experts.view(), 1, first.view(), pairs.view(), rows.view());
  EXPECT_EQ(to_doubles(first.view()), (std::vector<double>{0, 0, 3}));
  EXPECT_EQ(to_doubles(pairs.view()), (std::vector<double>{1, 2, 6, 9}));
  EXPECT_EQ(to_doubles(rows.view()), (std::vector<double>{-1, 0, 1, -1, -1, -1, 2, -1}));
  Tensor small(Device::cpu, DType::i32, {2});
  EXPECT_THROW(sort_by_expert(ctx, experts.view(), 1, first.view(), small.view(), rows.view()),
               Error);

  // Rows that are not used stay; those of other experts are zeros, and no terms.
  const Tensor x = tensor_of(DType::f64, {4, 1}, {1, 2, 3, 4});
  Tensor here = filled_tensor(DType::f64, {4, 1}, -7);
  const View used = first.view().slice(2, 1);
  gather_rows(ctx, x.view(), pairs.view(), 2, here.view(), used);
  EXPECT_EQ(to_doubles(here.view()), (std::vector<double>{1, 2, 4, -7}));
  Tensor sums(Device::cpu, DType::f64, {4, 1});
  sum_rows(ctx, here.view(), rows.view(), sums.view());
  EXPECT_EQ(to_doubles(sums.view()), (std::vector<double>{1, 2, 0, 4}));
  Tensor back(Device::cpu, DType::f64, {8, 1});
  gather_rows(ctx, here.view(), rows.view().reshaped({8}), 1, back.view());
  EXPECT_EQ(to_doubles(back.view()), (std::vector<double>{0, 1, 2, 0, 0, 0, 4, 0}));
  const Tensor weights = filled_tensor(DType::f64, {4}, 1);
  weighted_activation_forward(ctx, Activation::relu, {x.view(), weights.view(), used}, here.view());
  EXPECT_EQ(to_doubles(here.view()), (std::vector<double>{1, 2, 3, -7}));
  Tensor dweights = filled_tensor(DType::f64, {4}, -7);
  weighted_activation_backward(ctx, Activation::relu, {x.view(), weights.view(), used}, x.view(),
                               here.view(), dweights.view());
  EXPECT_EQ(to_doubles(dweights.view()), (std::vector<double>{1, 4, 9, -7}));
}

TEST_F(ExpertsOps, ArrivalsAreOrderedByExpertAndThenByRank) {
  // Rank 0 sends two rows of expert 0 and one of expert 2, rank 1 one of each.
  const Tensor arrived = int_tensor({2, 3}, {2, 0, 1, 1, 1, 1});
  Tensor first(Device::cpu, DType::i32, {4});
  Tensor order = int_tensor({8}, {9, 9, 9, 9, 9, 9, 9, 9});
  Tensor inverse = order.clone();
  order_arrivals(ctx, arrived.view(), first.view(), order.view(), inverse.view());
  EXPECT_EQ(to_doubles(first.view()), (std::vector<double>{0, 3, 4, 6}));
  EXPECT_EQ(to_doubles(order.view()), (std::vector<double>{0, 1, 3, 4, 2, 5, 9, 9}));
  EXPECT_EQ(to_doubles(inverse.view()), (std::vector<double>{0, 1, 4, 2, 3, 5, 9, 9}));
  Tensor counts(Device::cpu, DType::i32, {3});
  count_rows(ctx, first.view(), counts.view());
  EXPECT_EQ(to_doubles(counts.view()), (std::vector<double>{3, 1, 2}));
  Tensor small(Device::cpu, DType::i32, {5});
  EXPECT_THROW(order_arrivals(ctx, arrived.view(), first.view(), small.view(), small.view()),
               Error);
}

TEST_F(ExpertsOps, RowsGoToExpertsAndTheirSumComesBack) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Routed r({.count = 5, .active = 3}, DType::f32, 1, 6);
    r.route(ctx);
    Tensor first(Device::cpu, DType::i32, {6});
    Tensor pairs(Device::cpu, DType::i32, {18});
    Tensor rows(Device::cpu, DType::i32, {6, 3});
    sort_by_expert(ctx, r.experts.view(), 0, first.view(), pairs.view(), rows.view());
    const Tensor x = converted(bf16_numbers({6, 4}, 3).view(), dtype);
    Tensor gathered = poisoned(dtype, {18, 4});
    gather_rows(ctx, x.view(), pairs.view(), 3, gathered.view());
    Tensor y = poisoned(dtype, {6, 4});
    sum_rows(ctx, gathered.view(), rows.view(), y.view());
    for (Dim n = 0; n < 6; ++n) {
      for (Dim c = 0; c < 4; ++c) {
        const auto i = static_cast<std::size_t>(n * 4 + c);
        const double once = to_doubles(x.view())[i];
        EXPECT_NEAR(to_doubles(y.view())[i], 3 * once,
                    3 * std::abs(once) * tolerance(dtype) + 1e-12);
      }
    }
  }
}

/// Products of all experts, one of which has no row, against those of each.
TEST_F(ExpertsOps, EachExpertMultipliesItsRows) {
  constexpr Dim kIn = 3;
  constexpr Dim kOut = 5;
  const Tensor first = int_tensor({4}, {0, 4, 4, 6});
  const Tensor x = random_tensor(DType::f64, {7, kIn}, 1);
  const Tensor w = random_tensor(DType::f64, {3 * kOut, kIn}, 2);
  const Tensor dy = random_tensor(DType::f64, {7, kOut}, 3);
  Tensor y = filled_tensor(DType::f64, {7, kOut}, 8);
  Tensor dx = filled_tensor(DType::f64, {7, kIn}, 8);
  Tensor dw = filled_tensor(DType::f64, {3 * kOut, kIn}, 8);
  experts_forward(ctx, x.view(), w.view(), first.view(), y.view());
  experts_backward_input(ctx, dy.view(), w.view(), first.view(), dx.view());
  experts_backward_weight(ctx, dy.view(), x.view(), first.view(), Accumulate::no, dw.view());
  const auto at = [](const Tensor& of, Dim row, Dim column) {
    return of.view().data<double>()[row * of.view().shape()[1] + column];
  };
  const auto expert_of = [](Dim row) -> Dim { return row < 4 ? 0 : 2; };
  for (Dim row = 0; row < 6; ++row) {
    for (Dim o = 0; o < kOut; ++o) {
      double sum = 0;
      for (Dim i = 0; i < kIn; ++i) sum += at(x, row, i) * at(w, expert_of(row) * kOut + o, i);
      EXPECT_NEAR(at(y, row, o), sum, 1e-13);
    }
    for (Dim i = 0; i < kIn; ++i) {
      double sum = 0;
      for (Dim o = 0; o < kOut; ++o) sum += at(dy, row, o) * at(w, expert_of(row) * kOut + o, i);
      EXPECT_NEAR(at(dx, row, i), sum, 1e-13);
    }
  }
  EXPECT_EQ(at(y, 6, 0), 8);  // a row of no expert
  EXPECT_EQ(at(dx, 6, 0), 8);
  for (Dim e = 0; e < 3; ++e) {
    for (Dim o = 0; o < kOut; ++o) {
      for (Dim i = 0; i < kIn; ++i) {
        double sum = 0;
        for (Dim row = 0; row < 6; ++row) {
          if (expert_of(row) == e) sum += at(dy, row, o) * at(x, row, i);
        }
        EXPECT_NEAR(at(dw, e * kOut + o, i), sum, 1e-13);
      }
    }
  }
  experts_backward_weight(ctx, dy.view(), x.view(), first.view(), Accumulate::yes, dw.view());
  EXPECT_EQ(at(dw, kOut, 0), 0);
}

/// Each expert's rows of the quantized matrices, of which nf4's begin inside of blocks of scales.
TEST_F(ExpertsOps, EachExpertMultipliesItsRowsOfCodes) {
  constexpr Dim kIn = 128;
  constexpr Dim kOut = 50;
  const Tensor first = int_tensor({6}, {0, 4, 4, 6, 21, 22});
  const Tensor x = random_tensor(DType::f32, {22, kIn}, 1);
  const Tensor w = random_tensor(DType::f32, {5 * kOut, kIn}, 2);
  Tensor wide(Device::cpu, DType::f32, {5 * kOut, kIn});
  Tensor y = poisoned(DType::f32, {22, kOut});
  Tensor expected = poisoned(DType::f32, {22, kOut});
  for (const GroupedFormat& format : kGroupedFormats) {
    SCOPED_TRACE(std::string(name_of(format.format)) + " " + std::to_string(format.group));
    StoredMatrix codes = stored_matrix(format, 5 * kOut, kIn);
    quantize(ctx, w.view(), codes.matrix);
    dequantize(ctx, codes.view(), wide.view());
    experts_forward(ctx, x.view(), wide.view(), first.view(), expected.view());
    quantized_experts_forward(ctx, x.view(), codes.view(), first.view(), ActivationFormat::none,
                              y.view());
    expect_close(y.view(), expected.view(), "products");
  }
}

/// Sums of integers are exact, and every row has a scale of its own.
TEST_F(ExpertsOps, ProductsOfCodesOfRowsAreThoseOfEachExpertAlone) {
  constexpr Dim kIn = 70;
  constexpr Dim kOut = 9;
  const Tensor first = int_tensor({4}, {0, 5, 5, 17});
  const Tensor x = random_tensor(DType::f32, {17, kIn}, 1);
  const Tensor w = random_tensor(DType::f32, {3 * kOut, kIn}, 2);
  StoredMatrix codes(WeightFormat::int8, kIn, 3 * kOut, kIn);
  quantize(ctx, w.view(), codes.matrix);
  Tensor y = poisoned(DType::f32, {17, kOut});
  quantized_experts_forward(ctx, x.view(), codes.view(), first.view(),
                            ActivationFormat::dynamic_int8, y.view());

  for (const auto& [expert, begin, rows] : {std::array<Dim, 3>{0, 0, 5}, {2, 5, 12}}) {
    StoredMatrix alone(WeightFormat::int8, kIn, kOut, kIn);
    quantize(ctx, w.view().slice(expert * kOut, kOut), alone.matrix);
    Tensor expected = poisoned(DType::f32, {rows, kOut});
    quantized_linear_forward(ctx, x.view().slice(begin, rows), alone.view(), {},
                             ActivationFormat::dynamic_int8, expected.view());
    EXPECT_EQ(to_doubles(y.view().slice(begin, rows)), to_doubles(expected.view()));
  }
}

TEST_F(ExpertsOps, GradientsOfWeightedActivationsAreThoseOfDifferences) {
  for (const Activation activation : kActivations) {
    const Dim width = is_gated(activation) ? 8 : 4;
    Tensor pre = random_tensor(DType::f64, {5, width}, 7);
    Tensor weights = random_tensor(DType::f64, {5}, 8);
    const Tensor dy = random_tensor(DType::f64, {5, 4}, 9);
    const auto value = [&] {
      Tensor y = poisoned(DType::f64, {5, 4});
      weighted_activation_forward(ctx, activation, {pre.view(), weights.view()}, y.view());
      return inner_product(dy.view(), y.view());
    };
    Tensor dpre = pre.clone();  // in place, as the layer does it
    Tensor dweights = poisoned(DType::f64, {5});
    weighted_activation_backward(ctx, activation, {dpre.view(), weights.view()}, dy.view(),
                                 dpre.view(), dweights.view());
    expect_gradient(name_of(activation), pre.view(), dpre.view(), value, 1e-6, 1e-4);
    expect_gradient(name_of(activation), weights.view(), dweights.view(), value, 1e-6, 1e-4);
  }
}

TEST_F(ExpertsOps, PlansForAGpuNameKernelsAndTakeScratchMemory) {
  Context meta(Device::meta, 0, Device::cuda);
  const auto view = [](DType dtype, const Shape& shape) {
    return View(nullptr, dtype, Device::meta, shape);
  };
  const View first = view(DType::i32, {9});
  sort_by_expert(meta, view(DType::i32, {4096, 2}), 0, first, view(DType::i32, {8192}),
                 view(DType::i32, {4096, 2}));
  EXPECT_EQ(meta.workspace_high_water(), (16 + 1) * 8 * sizeof(std::int32_t));
  router_statistics(meta, {.count = 8, .active = 2}, view(DType::f32, {4096, 8}),
                    view(DType::i32, {4096, 2}), view(DType::f32, {4, 18}));
  EXPECT_EQ(meta.workspace_high_water(), 4 * 16 * 18 * sizeof(float));
  const View x = view(DType::bf16, {8192, 1024});
  const View y = view(DType::bf16, {8192, 768});
  experts_forward(meta, x, view(DType::bf16, {8 * 768, 1024}), first, y);
  experts_backward_weight(meta, y, x, first, Accumulate::no, view(DType::f32, {8 * 768, 1024}));
  ASSERT_EQ(meta.ledger().kernels().size(), 2U);
  for (const auto& [key, choice] : meta.ledger().kernels()) {
    EXPECT_EQ(choice.kernel, "warpgroups, 256 columns");
  }
}

TEST_F(ExpertsOps, RefuseOtherSizes) {
  Routed r({.count = 6, .active = 2}, DType::f64, 1, 4);
  Tensor narrow(Device::cpu, DType::i32, {4, 1});
  EXPECT_THROW(ops::route(ctx, r.rule, r.logits.view(), {}, narrow.view(), r.weights.view()),
               Error);
  EXPECT_THROW(ops::route(ctx, {.count = 6, .active = 7}, r.logits.view(), {}, r.experts.view(),
                          r.weights.view()),
               Error);
  EXPECT_THROW(ops::route(ctx, {.count = 6, .active = 2, .groups = 4}, r.logits.view(), {},
                          r.experts.view(), r.weights.view()),
               Error);
  const Tensor x = random_tensor(DType::f64, {4, 3}, 1);
  const Tensor w = random_tensor(DType::f64, {6, 3}, 1);
  Tensor y = poisoned(DType::f64, {4, 2});
  const Tensor falls = int_tensor({4}, {0, 3, 2, 4});
  const Tensor beyond = int_tensor({4}, {0, 3, 4, 5});
  for (const Tensor* first : {&falls, &beyond}) {
    EXPECT_THROW(experts_forward(ctx, x.view(), w.view(), first->view(), y.view()), Error);
  }
}

}  // namespace
}  // namespace hyperslab::ops
