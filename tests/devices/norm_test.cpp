// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/norm.hpp"

#include <cmath>

#include "hyperslab/ops/elementwise.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

struct Size {
  Dim rows;
  Dim C;
};
/// One element, odd widths, a warp's row, several warps, the widest.
const std::vector<Size> kSizes = {{1, 1},     {3, 7},     {5, 32},   {9, 250},  {701, 768},
                                  {17, 1024}, {13, 1032}, {6, 1603}, {5, 4096}, {3, 6144},
                                  {2, 16384}, {2, 9001},  {0, 64}};

class Norm : public DevicesTest {};

Tensor around(DType dtype, const Shape& shape, std::uint64_t seed, double center) {
  auto values = to_doubles(random_tensor(DType::f32, shape, seed).view());
  for (double& value : values) value += center;
  return tensor_of(dtype, shape, values);
}

TEST_F(Norm, Forward) {
  for (const DType dtype : compute_types()) {
    for (const auto& [rows, C] : kSizes) {
      for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {rows, C}, 1))
            .input(random_tensor(dtype, {rows, C}, 2))
            .input(around(dtype, {C}, 3, 1))
            .input(random_tensor(dtype, {C}, 4))
            .output(dtype, {rows, C})
            .output(dtype, {rows, C})
            .output(DType::f32, {rows})
            .output(DType::f32, {rows});
        const bool centered = kind == NormKind::layernorm;
        // rmsnorm has no mean: then the operand would stay poisoned.
        const auto call = [=](Context& ctx, const Views& v) {
          add_norm_forward(
              ctx, kind,
              {.residual = v[0],
               .delta = v[1],
               .weight = v[2],
               .bias = centered ? CView(v[3]) : CView(),
               .eps = 1e-5F},
              {.sum = v[4], .y = v[5], .mean = centered ? v[6] : View(), .rstd = v[7]});
          if (!centered) ops::fill(ctx, 0, v[6]);
        };
        problem.expect_match(call, "add_norm_forward " + std::to_string(C), C == 1 ? 50 : 4);
      }
    }
  }
}

TEST_F(Norm, ForwardWithoutDeltaAndInPlace) {
  for (const DType dtype : compute_types()) {
    for (const Dim C : {5, 768, 2056}) {
      Problem plain(dtype);
      plain.input(random_tensor(dtype, {4, C}, 1))
          .input(around(dtype, {C}, 3, 1))
          .output(dtype, {4, C})
          .output(dtype, {4, C})
          .output(DType::f32, {4});
      plain.expect_match(
          [](Context& ctx, const Views& v) {
            add_norm_forward(ctx, NormKind::rmsnorm,
                             {.residual = v[0], .weight = v[1], .eps = 1e-5F},
                             {.sum = v[2], .y = v[3], .rstd = v[4]});
          },
          "sum is a copy");
      Problem in_place(dtype);
      in_place.input(random_tensor(dtype, {4, C}, 1))
          .in_out(random_tensor(dtype, {4, C}, 2))
          .input(around(dtype, {C}, 3, 1))
          .output(dtype, {4, C})
          .output(DType::f32, {4})
          .output(DType::f32, {4});
      in_place.expect_match(
          [](Context& ctx, const Views& v) {
            add_norm_forward(ctx, NormKind::layernorm,
                             {.residual = v[0], .delta = v[1], .weight = v[2], .eps = 1e-5F},
                             {.sum = v[1], .y = v[3], .mean = v[4], .rstd = v[5]});
          },
          "sum in delta's memory", 2);
    }
  }
}

TEST_F(Norm, TheKeptSumGivesTheSameBits) {
  for (const DType dtype : compute_types()) {
    for (const auto& [rows, C] : kSizes) {
      for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm, NormKind::none}) {
        const bool centered = kind == NormKind::layernorm;
        const bool scales = kind != NormKind::none;
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {rows, C}, 1))
            .input(random_tensor(dtype, {rows, C}, 2))
            .input(around(dtype, {C}, 3, 1))
            .input(random_tensor(dtype, {C}, 4))
            .output(dtype, {rows, C});
        for (int twice = 0; twice < 2; ++twice) {
          problem.output(dtype, {rows, C}).output(DType::f32, {rows}).output(DType::f32, {rows});
        }
        const auto call = [=](Context& ctx, const Views& v) {
          const auto norm = [&](CView residual, CView delta, View sum, std::size_t out) {
            add_norm_forward(ctx, kind,
                             {.residual = residual,
                              .delta = delta,
                              .weight = scales ? CView(v[2]) : CView(),
                              .bias = centered ? CView(v[3]) : CView(),
                              .eps = 1e-5F},
                             {.sum = sum,
                              .y = v[out],
                              .mean = centered ? v[out + 1] : View(),
                              .rstd = scales ? v[out + 2] : View()});
          };
          norm(v[0], v[1], v[4], 5);
          norm(v[4], {}, {}, 8);
        };
        // CPUs normalize the sum of bf16 before they round it.
        if (dtype == DType::bf16) problem.only_on(Device::cuda);
        problem.on_each(call, [&, rows = rows, C = C](const Results& found) {
          for (const std::size_t i : {5, 6, 7}) {
            EXPECT_TRUE(same_bits(found[i].view(), found[i + 3].view()))
                << rows << " x " << C << ", operand " << i;
          }
        });
      }
    }
  }
}

TEST_F(Norm, AMeanFarFromZeroDoesNotCancel) {
  for (const Dim C : {248, 1000}) {
    Problem problem(DType::f32);
    problem.input(around(DType::f32, {3, C}, 1, 1000))
        .input(filled_tensor(DType::f32, {C}, 1))
        .output(DType::f32, {3, C})
        .output(DType::f32, {3})
        .output(DType::f32, {3});
    // Without vectors a CPU adds up as many terms one by one.
    if (C == 1000) problem.only_on(Device::cuda);
    problem.expect_match(
        [](Context& ctx, const Views& v) {
          add_norm_forward(ctx, NormKind::layernorm,
                           {.residual = v[0], .weight = v[1], .eps = 1e-5F},
                           {.y = v[2], .mean = v[3], .rstd = v[4]});
        },
        "mean 1000", 5);
  }
}

TEST_F(Norm, NoneAdds) {
  for (const DType dtype : compute_types()) {
    Problem forward(dtype);
    forward.input(random_tensor(dtype, {3, 37}, 1))
        .input(random_tensor(dtype, {3, 37}, 2))
        .output(dtype, {3, 37})
        .output(dtype, {3, 37});
    forward.expect_match(
        [](Context& ctx, const Views& v) {
          add_norm_forward(ctx, NormKind::none, {.residual = v[0], .delta = v[1]},
                           {.sum = v[2], .y = v[3]});
        },
        "none");
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      Problem backward(dtype);
      backward.input(random_tensor(dtype, {3, 37}, 1)).in_out(random_tensor(dtype, {3, 37}, 2));
      backward.expect_match(
          [=](Context& ctx, const Views& v) {
            norm_backward(ctx, NormKind::none, v[0], {},
                          {.dsum = v[1], .accumulate_input = accumulate});
          },
          "none backward");
    }
  }
}

/// With one column a centered norm does not depend on x: rstd * dy * weight cancels to zero, and
/// rounding is relative to it.
double canceling_magnitude(CView dy, CView weight, const std::vector<double>& rstds) {
  const std::vector<double> dys = to_doubles(dy);
  double magnitude = 0;
  for (std::size_t row = 0; row < dys.size(); ++row) {
    magnitude = std::max(magnitude, std::abs(dys[row] * rstds[row]));
  }
  return magnitude * std::abs(to_doubles(weight).front());
}

/// Operands of a backward call, statistics made by the double oracle.
Problem backward_problem(DType dtype, const Size& size, NormKind kind, bool accumulate) {
  const auto [rows, C] = size;
  const Tensor x = random_tensor(dtype, {rows, C}, 1, 2.0);
  const auto values = to_doubles(x.view());
  std::vector<double> means(static_cast<std::size_t>(rows));
  std::vector<double> rstds(means.size());
  for (Dim row = 0; row < rows; ++row) {
    double mean = 0;
    double squares = 0;
    for (Dim c = 0; c < C; ++c) mean += values[row * C + c] / static_cast<double>(C);
    if (kind == NormKind::rmsnorm) mean = 0;
    for (Dim c = 0; c < C; ++c) {
      const double centered = values[row * C + c] - mean;
      squares += centered * centered / static_cast<double>(C);
    }
    means[row] = mean;
    rstds[row] = 1 / std::sqrt(squares + 1e-2);
  }
  const auto gradient = [&](DType type, const Shape& shape, std::uint64_t seed) {
    return accumulate ? random_tensor(type, shape, seed) : poisoned(type, shape);
  };
  const Tensor dy = random_tensor(dtype, {rows, C}, 2);
  const Tensor weight = random_tensor(dtype, {C}, 3);
  const bool cancels = C == 1 && kind == NormKind::layernorm;
  Problem problem(dtype);
  problem.input(dy.clone())
      .input(x.clone())
      .input(weight.clone())
      .input(tensor_of(DType::f32, {rows}, means))
      .input(tensor_of(DType::f32, {rows}, rstds))
      .in_out(gradient(dtype, {rows, C}, 4),
              cancels ? canceling_magnitude(dy.view(), weight.view(), rstds) : Problem::kFloor)
      .in_out(gradient(DType::f32, {C}, 5))
      .in_out(gradient(DType::f32, {C}, 6));
  return problem;
}

/// Beside dsum: gradients of weights, these and the sums of the stream, or nothing.
enum class Written : std::uint8_t { weights, sums, nothing };

/// On operands of backward_problem(), with those of the sums after them.
Problem::Call backward_call(NormKind kind, Written written, Accumulate input, Accumulate weight) {
  const bool centered = kind == NormKind::layernorm;
  return [=](Context& ctx, const Views& v) {
    NormGradients gradients = {.dsum = v[5], .accumulate_input = input};
    gradients.accumulate_weight = weight;
    if (written != Written::nothing) gradients.dweight = v[6];
    if (written != Written::nothing && centered) gradients.dbias = v[7];
    if (written == Written::sums) gradients.arriving_sums = v[8];
    if (written == Written::sums) gradients.leaving_sums = v[9];
    NormSaved saved = {.sum = v[1], .weight = v[2], .rstd = v[4]};
    if (centered) saved.mean = v[3];
    norm_backward(ctx, kind, v[0], saved, gradients);
    if (!gradients.dweight) ops::fill(ctx, 0, v[6]);
    if (!gradients.dbias) ops::fill(ctx, 0, v[7]);
  };
}

/// All gradients are added to, or none.
void expect_backward(Written written) {
  for (const DType dtype : compute_types()) {
    for (const Size& size : kSizes) {
      for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
        for (const Accumulate add : {Accumulate::no, Accumulate::yes}) {
          backward_problem(dtype, size, kind, add == Accumulate::yes)
              .expect_match(backward_call(kind, written, add, add),
                            "norm_backward " + std::to_string(size.C), 4);
        }
      }
    }
  }
}

TEST_F(Norm, Backward) { expect_backward(Written::weights); }
TEST_F(Norm, BackwardOfFrozenWeights) { expect_backward(Written::nothing); }

void expect_sums(Problem problem, const Size& size, NormKind kind, Accumulate weight) {
  for (const std::uint64_t seed : {7, 8}) problem.in_out(around(DType::f32, {size.C}, seed, 0));
  problem.expect_match(backward_call(kind, Written::sums, Accumulate::yes, weight),
                       "norm_backward with sums of the stream, " + std::to_string(size.C), 4);
}

TEST_F(Norm, BackwardSumsWhatArrivesAndWhatLeaves) {
  for (const DType dtype : compute_types()) {
    for (const Size& size : kSizes) {
      for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
        for (const Accumulate weight : {Accumulate::no, Accumulate::yes}) {
          expect_sums(backward_problem(dtype, size, kind, true), size, kind, weight);
        }
      }
    }
  }
}

/// More rows than the shared memory of all multiprocessors holds (norm_backward_ring.cuh).
TEST_F(Norm, BackwardOfManyRows) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "rows beyond the shared memory of a GPU";
  for (const auto& [size, kind] : std::vector<std::pair<Size, NormKind>>{
           {{3000, 1600}, NormKind::layernorm}, {{1100, 4096}, NormKind::rmsnorm}}) {
    Problem problem = backward_problem(DType::bf16, size, kind, true);
    problem.only_on(Device::cuda);
    expect_sums(std::move(problem), size, kind, Accumulate::yes);
  }
}

TEST_F(Norm, WeightGradientsOf16BitRowsAreAsExactAsF32) {
  const auto problem = backward_problem(DType::bf16, {3001, 200}, NormKind::layernorm, false);
  const auto call =
      backward_call(NormKind::layernorm, Written::weights, Accumulate::no, Accumulate::no);
  const auto oracle = problem.on_oracle(call);
  problem.on_each(call, [&](const Results& found) {
    EXPECT_LE(relative_difference(found[6].view(), oracle[6].view()), tolerance(DType::f32));
    EXPECT_LE(relative_difference(found[7].view(), oracle[7].view()), tolerance(DType::f32));
  });
}

}  // namespace
}  // namespace hyperslab::ops
