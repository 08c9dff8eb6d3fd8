// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "devices/experts_problem.hpp"
#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

class Experts : public DevicesTest {};

constexpr Dim kSamples = 3;
constexpr Dim kSampleTokens = 70;  // a part of statistics, and a few more
constexpr Dim kTokens = kSamples * kSampleTokens;

/// Rules with awkward counts, and with groups.
std::vector<RouterRule> rules() {
  std::vector<RouterRule> out;
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const auto& [count, active, groups, active_groups] :
         std::vector<std::array<Dim, 4>>{{1, 1, 1, 1},
                                         {3, 2, 1, 1},
                                         {8, 1, 1, 1},
                                         {8, 8, 1, 1},
                                         {33, 2, 11, 3},
                                         {64, 6, 8, 3},
                                         {128, 8, 1, 1},
                                         {256, 8, 8, 4},
                                         {1000, 32, 1, 1},
                                         {1024, 8, 64, 40}}) {
      const bool normalize = active != 6;
      out.push_back({.count = count,
                     .active = active,
                     .score = score,
                     .normalize = normalize,
                     .scale = 2.5F,
                     .groups = groups,
                     .active_groups = active_groups});
    }
  }
  out.push_back({.count = 33, .active = 5, .in_turn = true});
  return out;
}

std::string text_of(const RouterRule& rule) {
  return std::string(name_of(rule.score)) + " of " + std::to_string(rule.count) + " experts, " +
         std::to_string(rule.active) + " active, " + std::to_string(rule.active_groups) + " of " +
         std::to_string(rule.groups) + " groups";
}

/// Each token's logits are equally far apart, so that f32 and f64 choose alike: a shuffle of
/// numbers from -6 to 6.
Tensor apart_logits(Dim tokens, Dim experts) {
  std::vector<double> values;
  std::uint64_t state = 12345;
  for (Dim n = 0; n < tokens; ++n) {
    std::vector<Dim> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), Dim{0});
    for (std::size_t i = order.size(); i > 1; --i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      std::swap(order[i - 1], order[(state >> 33U) % i]);
    }
    for (const Dim place : order) {
      values.push_back(12.0 * static_cast<double>(place) / static_cast<double>(experts) - 6);
    }
  }
  return tensor_of(DType::f32, {tokens, experts}, values);
}

Tensor ints(const Shape& shape, std::int32_t value) {
  return int_tensor(shape,
                    std::vector<std::int32_t>(static_cast<std::size_t>(shape.numel()), value));
}

/// A router's choice, made on the CPU.
Tensor chosen_experts(const RouterRule& rule, CView logits) {
  Context ctx(Device::cpu);
  const Dim tokens = logits.rows();
  Tensor experts = ints({tokens, rule.active}, -1);
  Tensor weights = poisoned(DType::f32, {tokens, rule.active});
  route(ctx, rule, logits, {}, experts.view(), weights.view());
  return experts;
}

/// Expects operands of whole numbers to be exactly those of the CPU.
void expect_exactly(const Problem& problem, const Problem::Call& call,
                    const std::vector<std::size_t>& operands, const std::string& what) {
  const Results expected = problem.on_oracle(call);
  problem.on_each(call, [&](const Results& found) {
    for (const std::size_t i : operands) {
      EXPECT_TRUE(same_bits(found[i].view(), expected[i].view())) << what << ", operand " << i;
    }
  });
}

TEST_F(Experts, TokensTakeTheExpertsOfTheOracle) {
  for (const RouterRule& rule : rules()) {
    for (const bool biased : {false, true}) {
      Problem problem(DType::f32);
      problem.input(apart_logits(kTokens, rule.count));
      if (biased) {
        problem.input(random_tensor(DType::f32, {rule.count}, 8, 0.5));
      } else {
        problem.absent();
      }
      problem.fixed_output(ints({kTokens, rule.active}, -1))
          .output(DType::f32, {kTokens, rule.active});
      const auto call = [&](Context& ctx, const Views& v) {
        route(ctx, rule, v[0], v[1], v[2], v[3]);
      };
      problem.expect_match(call, "route by " + text_of(rule));
      expect_exactly(problem, call, {2}, "route by " + text_of(rule));
    }
  }
}

TEST_F(Experts, OfEqualScoresTheFirstExpertsAreTaken) {
  for (const Dim experts : {5, 40, 128}) {
    const RouterRule rule = {.count = experts, .active = 4};
    Problem problem(DType::f32);
    problem.input(filled_tensor(DType::f32, {9, experts}, 1))
        .fixed_output(ints({9, 4}, -1))
        .output(DType::f32, {9, 4});
    problem.on_each([&](Context& ctx, const Views& v) { route(ctx, rule, v[0], {}, v[1], v[2]); },
                    [&](const Results& found) {
                      for (Dim i = 0; i < 36; ++i) {
                        EXPECT_EQ(found[1].view().data<std::int32_t>()[i], i % 4);
                      }
                    });
  }
}

TEST_F(Experts, StatisticsMatchTheOracle) {
  for (const RouterRule& rule : rules()) {
    const Dim width = router_statistics_width(rule.count);
    const Tensor logits = apart_logits(kTokens, rule.count);
    Problem problem(DType::f32);
    problem.input(logits.clone())
        .fixed(chosen_experts(rule, logits.view()))
        .output(DType::f32, {kSamples, width})
        .in_out(random_tensor(DType::f32, {kSumCount}, 3))
        .in_out(filled_tensor(DType::f32, {rule.count}, 2));
    problem.expect_match(
        [&](Context& ctx, const Views& v) {
          router_statistics(ctx, rule, v[0], v[1], v[2]);
          add_router_statistics(ctx, rule, {.samples = 3, .tokens = kSampleTokens}, v[2], v[3],
                                v[4]);
        },
        "statistics by " + text_of(rule), 2);
  }
}

TEST_F(Experts, BiasesMoveUnlessTheStepIsSkipped) {
  for (const Dim experts : {1, 8, 300, 1024}) {
    for (const std::int32_t skip : {0, 1}) {
      StepState state;
      state.skip = skip;
      Problem problem(DType::f32);
      problem.input(random_tensor(DType::f32, {experts}, 4, 100))
          .fixed(bytes_of(state))
          .in_out(random_tensor(DType::f32, {experts}, 5));
      problem.expect_match(
          [&](Context& ctx, const Views& v) {
            update_router_bias(ctx, 0.01F, v[0], struct_at<StepState>(v[1]), v[2]);
          },
          "update_router_bias of " + std::to_string(experts));
    }
  }
}

TEST_F(Experts, LoadsOfAStepGoToItsPlaceInTheRing) {
  for (const Dim layers : {1, 7}) {
    StepState state;
    state.input.step = 4 * layers + 3;
    Problem problem(DType::f32);
    problem.input(random_tensor(DType::f32, {layers, 64}, 4, 100))
        .fixed(bytes_of(state))
        .in_out(random_tensor(DType::f32, {kResultRing, layers, 64}, 5));
    problem.expect_match(
        [&](Context& ctx, const Views& v) {
          publish_loads(ctx, v[0], struct_at<StepState>(v[1]), v[2]);
        },
        "publish_loads of " + std::to_string(layers));
  }
}

TEST_F(Experts, GradientsOfTheRouterMatchTheOracle) {
  StepState state;
  state.input.inverse_samples = 1.0F / kSamples;
  state.loss_scale = 4;
  for (const RouterRule& rule : rules()) {
    for (const bool with_losses : {false, true}) {
      const RouterLosses losses = {with_losses ? 3.0F : 0, with_losses ? 0.5F : 0, 2,
                                   kSampleTokens};
      const Tensor logits = apart_logits(kTokens, rule.count);
      const Tensor experts = chosen_experts(rule, logits.view());
      Context ctx(Device::cpu);
      Tensor statistics = poisoned(DType::f32, {kSamples, router_statistics_width(rule.count)});
      router_statistics(ctx, rule, logits.view(), experts.view(), statistics.view());
      Problem problem(DType::f32);
      problem.input(logits.clone())
          .fixed(experts.clone())
          .input(random_tensor(DType::f32, {kTokens, rule.active}, 6))
          .input(statistics.clone())
          .fixed(bytes_of(state))
          .in_out(poisoned(DType::f32, {kTokens, rule.count}), 0.1);  // zero of a constant weight
      problem.expect_match(
          [&](Context& here, const Views& v) {
            const RouterGradient gradient = {v[2], losses, with_losses ? CView(v[3]) : CView(),
                                             struct_at<StepState>(v[4])};
            route_backward(here, rule, v[0], v[1], gradient, v[5]);
          },
          "route_backward by " + text_of(rule), 2);
    }
  }
}

/// N tokens' experts, ascending; `all_to_last`: as many tokens as can take the last ones.
Tensor experts_of_tokens(Dim tokens, Dim active, Dim experts, bool all_to_last) {
  std::vector<std::int32_t> out;
  for (Dim n = 0; n < tokens; ++n) {
    std::vector<std::int32_t> taken;
    for (Dim k = 0; k < active; ++k) {
      const Dim first = all_to_last ? experts - active : n * n * 31 + n / 3;
      taken.push_back(static_cast<std::int32_t>((first + k) % experts));
    }
    std::ranges::sort(taken);
    out.insert(out.end(), taken.begin(), taken.end());
  }
  return int_tensor({tokens, active}, out);
}

TEST_F(Experts, SortsStably) {
  for (const auto& [tokens, active, experts] : std::vector<std::array<Dim, 3>>{{1, 1, 1},
                                                                               {5, 2, 3},
                                                                               {511, 1, 8},
                                                                               {513, 1, 3},
                                                                               {64, 8, 8},
                                                                               {1000, 2, 40},
                                                                               {300, 8, 1024},
                                                                               {125000, 8, 128}}) {
    for (const bool all_to_last : {false, true}) {
      Problem problem(DType::f32);
      problem.fixed(experts_of_tokens(tokens, active, experts, all_to_last))
          .fixed_output(ints({experts + 1}, -1))
          .fixed_output(ints({tokens * active}, -1))
          .fixed_output(ints({tokens, active}, -1))
          .fixed_output(ints({experts}, -1))
          .fixed_output(ints({experts / 2 + 2}, -1))
          .fixed_output(ints({tokens * active}, -1))
          .fixed_output(ints({tokens, active}, -1));
      expect_exactly(
          problem,
          [&](Context& ctx, const Views& v) {
            sort_by_expert(ctx, v[0], 0, v[1], v[2], v[3]);
            count_rows(ctx, v[1], v[4]);
            sort_by_expert(ctx, v[0], experts / 3, v[5], v[6], v[7]);  // of some experts
          },
          {1, 2, 3, 4, 5, 6, 7},
          "sort_by_expert of " + std::to_string(tokens * active) + " among " +
              std::to_string(experts));
    }
  }
}

TEST_F(Experts, OrdersArrivals) {
  for (const auto& [ranks, experts] :
       std::vector<std::array<Dim, 2>>{{1, 1}, {2, 3}, {8, 16}, {3, 300}}) {
    std::vector<std::int32_t> counts;
    Dim rows = 0;
    for (Dim i = 0; i < ranks * experts; ++i) {
      counts.push_back(static_cast<std::int32_t>(i * i * 13 % 7 * (i % 9 == 4 ? 100 : 1)));
      rows += counts.back();
    }
    Problem problem(DType::f32);
    problem.fixed(int_tensor({ranks, experts}, counts))
        .fixed_output(ints({experts + 1}, -1))
        .fixed_output(ints({rows + 5}, -7))
        .fixed_output(ints({rows + 5}, -7));
    expect_exactly(
        problem, [](Context& ctx, const Views& v) { order_arrivals(ctx, v[0], v[1], v[2], v[3]); },
        {1, 2, 3}, "order_arrivals of " + std::to_string(ranks * experts));
  }
}

/// Every third one is of another rank's expert.
std::vector<std::int32_t> without_some(std::vector<std::int32_t> rows) {
  for (std::size_t i = 1; i < rows.size(); i += 3) rows[i] = -1;
  return rows;
}

TEST_F(Experts, RowsAreGatheredAndSummed) {
  for (const DType dtype : compute_types()) {
    for (const Dim width : {1, 8, 13, 24, 384, 4104}) {
      for (const Dim active : {1, 2, 8}) {
        constexpr Dim kRowTokens = 37;
        const Dim rows = kRowTokens * active;
        std::vector<std::int32_t> pairs;
        for (Dim i = 0; i < rows; ++i) pairs.push_back(static_cast<std::int32_t>(i * 5 % rows));
        std::vector<std::int32_t> places(pairs.rbegin(), pairs.rend());
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {kRowTokens, width}, 1))
            .fixed(int_tensor({rows}, pairs))
            .output(dtype, {rows, width})
            .input(random_tensor(dtype, {rows, width}, 2))
            .fixed(int_tensor({kRowTokens, active}, places))
            .output(dtype, {kRowTokens, width})
            .in_out(random_tensor(dtype, {rows, width}, 3))
            .fixed(int_tensor({1}, {static_cast<std::int32_t>(rows / 2)}))
            .fixed(int_tensor({rows}, without_some(pairs)))
            .fixed(int_tensor({kRowTokens, active}, without_some(places)))
            .output(dtype, {kRowTokens, width});
        problem.expect_match(
            [&](Context& ctx, const Views& v) {
              gather_rows(ctx, v[0], v[1], active, v[2]);
              sum_rows(ctx, v[3], v[4], v[5]);
              gather_rows(ctx, v[0], v[8], active, v[6], v[7]);
              sum_rows(ctx, v[3], v[9], v[10]);
            },
            "rows of " + std::to_string(width) + ", " + std::to_string(active) + " a token");
      }
    }
  }
}

/// Sums of rows in parts, of which the last one may be empty, are those of all rows at once.
TEST_F(Experts, SumsOfPartsMatchTheOracle) {
  constexpr Dim kRows = 10;
  const std::vector<std::int32_t> first_rows = {0, 4, 4, 9};  // row 9 has no expert
  const std::vector<std::int32_t> rows = {3, 8, -1, 0, 7, 2, 6, -1, 1, 5, -1, -1, 4, 6};
  for (const DType dtype : compute_types()) {
    for (const Dim at_once : {3, 4, 6, 9}) {
      for (const Dim width : {8, 13}) {
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {kRows, width}, 1))
            .fixed(int_tensor({7, 2}, rows))
            .fixed(int_tensor({4}, first_rows))
            .fixed(int_tensor({4, 4}, std::vector<std::int32_t>(16)))
            .output(dtype, {7, width})
            .in_out(random_tensor(DType::f32, {kSumCount}, 2));
        problem.expect_match(
            [&](Context& ctx, const Views& v) {
              cut_first_rows(ctx, v[2], at_once, v[3]);
              for (Dim part = 0; part < 4; ++part) {
                const Dim first = part * at_once;
                const Dim count = std::clamp<Dim>(kRows - first, 0, at_once);
                const CView x = v[0].slice(std::min(first, kRows), count);
                sum_rows(ctx, x, v[1], v[4],
                         {first, part == 0 ? Accumulate::no : Accumulate::yes,
                          v[3].slice(part, 1).flat().slice(3, 1)});
              }
              add_rows_beyond(ctx, v[2], at_once, v[5]);
            },
            std::to_string(at_once) + " rows at once of width " + std::to_string(width), 4);
      }
    }
  }
}

TEST_F(Experts, WeightedActivationsMatchTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const Activation activation : kActivations) {
      for (const auto& [rows, width] :
           std::vector<std::array<Dim, 2>>{{1, 8}, {7, 13}, {65, 384}, {3, 4112}}) {
        const Dim pre = is_gated(activation) ? 2 * width : width;
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {rows, pre}, 1))
            .input(random_tensor(DType::f32, {rows}, 2))
            .output(dtype, {rows, width})
            .input(random_tensor(dtype, {rows, width}, 3))
            .output(dtype, {rows, pre})
            .output(DType::f32, {rows})
            .in_out(random_tensor(dtype, {rows, pre}, 4))
            .output(DType::f32, {rows})
            .fixed(int_tensor({1}, {static_cast<std::int32_t>(rows / 2)}))
            .in_out(random_tensor(dtype, {rows, width}, 5))
            .in_out(random_tensor(dtype, {rows, pre}, 6))
            .in_out(random_tensor(DType::f32, {rows}, 7));
        problem.expect_match(
            [&](Context& ctx, const Views& v) {
              weighted_activation_forward(ctx, activation, {v[0], v[1], v[8]}, v[9]);
              weighted_activation_backward(ctx, activation, {v[0], v[1], v[8]}, v[3], v[10], v[11]);
              weighted_activation_forward(ctx, activation, {v[0], v[1]}, v[2]);
              weighted_activation_backward(ctx, activation, {v[0], v[1]}, v[3], v[4], v[5]);
              weighted_activation_backward(ctx, activation, {v[6], v[1]}, v[3], v[6], v[7]);
            },
            std::string(name_of(activation)) + " of " + std::to_string(rows) + " x " +
                std::to_string(width),
            2);
      }
    }
  }
}

TEST_F(Experts, ProductsMatchTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const std::vector<std::int32_t>& rows : rows_of_experts()) {
      for (const auto& [in, out] : std::vector<std::array<Dim, 2>>{
               {8, 8}, {16, 24}, {64, 128}, {72, 136}, {384, 8}, {8, 384}, {13, 7}}) {
        const ExpertsCase sizes = {rows, in, out, rows.size() % 2 == 0 ? Dim{9} : Dim{0}};
        expect_forward(sizes, dtype, experts_forward, "the first kernel");
        expect_backward_input(sizes, dtype, experts_backward_input, "the first kernel");
        expect_backward_weight(sizes, dtype, experts_backward_weight, "the first kernel");
      }
    }
  }
}

/// Rows are gathered on the device alone, so that the oracle takes them in order. The last case has
/// enough tiles for kernels that gather on their own.
TEST_F(Experts, ProductsOfGatheredRowsMatchTheOracle) {
  const auto expect = [](DType dtype, const ExpertsCase& sizes) {
    const auto as_gathered = [&](Context& ctx, CView rows, auto&& op) {
      if (rows.dtype() == DType::f64) return op(GatheredRows(rows));
      GatheredCopy copy(ctx, rows, sizes.used());
      op(copy.rows());
    };
    expect_forward(
        sizes, dtype,
        [&](Context& ctx, CView x, CView w, CView first, View y) {
          as_gathered(ctx, x, [&](auto rows) { experts_forward(ctx, rows, w, first, y); });
        },
        "gathered rows");
    expect_backward_input(
        sizes, dtype,
        [&](Context& ctx, CView dy, CView w, CView first, View dx) {
          as_gathered(ctx, dy, [&](auto rows) { experts_backward_input(ctx, rows, w, first, dx); });
        },
        "gathered rows");
    expect_backward_weight(
        sizes, dtype,
        [&](Context& ctx, CView dy, CView x, CView first, Accumulate accumulate, View dw) {
          as_gathered(ctx, dy, [&](auto rows) {
            experts_backward_weight(ctx, rows, x, first, accumulate, dw);
          });
        },
        "gathered gradients");
    expect_backward_weight(
        sizes, dtype,
        [&](Context& ctx, CView dy, CView x, CView first, Accumulate accumulate, View dw) {
          as_gathered(ctx, x, [&](auto rows) {
            experts_backward_weight(ctx, dy, rows, first, accumulate, dw);
          });
        },
        "gathered inputs");
  };
  for (const DType dtype : compute_types()) {
    for (const std::vector<std::int32_t>& rows : rows_of_experts()) {
      expect(dtype, {rows, 24, 16, 9});
      expect(dtype, {rows, 13, 40, 0});
    }
  }
}

/// No rows at all: gradients of weights are zero, or stay.
TEST_F(Experts, ProductsOfNoRows) {
  for (const DType dtype : compute_types()) {
    const ExpertsCase sizes = {{0, 0, 0}, 16, 24, 4};
    expect_forward(sizes, dtype, experts_forward, "the first kernel");
    expect_backward_input(sizes, dtype, experts_backward_input, "the first kernel");
    expect_backward_weight(sizes, dtype, experts_backward_weight, "the first kernel");
  }
}

}  // namespace
}  // namespace hyperslab::ops
