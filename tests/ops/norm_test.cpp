// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/norm.hpp"

#include "finite_difference.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr float kEps = 1e-5F;

class Norm : public OpsTest {};

/// One norm of (rows, C) with everything it reads and writes.
struct NormCase {
  Tensor residual, delta, weight, bias;
  Tensor sum, y, mean, rstd;

  NormCase(DType dtype, Dim rows, Dim C)
      : residual(converted(random_tensor(DType::f32, {rows, C}, 1).view(), dtype)),
        delta(converted(random_tensor(DType::f32, {rows, C}, 2).view(), dtype)),
        weight(converted(random_tensor(DType::f32, {C}, 3).view(), dtype)),
        bias(converted(random_tensor(DType::f32, {C}, 4).view(), dtype)),
        sum(poisoned(dtype, {rows, C})),
        y(poisoned(dtype, {rows, C})),
        mean(poisoned(dtype, {rows})),
        rstd(poisoned(dtype, {rows})) {}

  void forward(Context& ctx, NormKind kind) {
    const bool centered = kind == NormKind::layernorm;
    add_norm_forward(ctx, kind,
                     {.residual = residual.view(),
                      .delta = delta.view(),
                      .weight = weight.view(),
                      .bias = centered ? bias.view() : View(),
                      .eps = kEps},
                     {.sum = sum.view(),
                      .y = y.view(),
                      .mean = centered ? mean.view() : View(),
                      .rstd = rstd.view()});
  }
};

TEST_F(Norm, ForwardByHand) {
  const Tensor x = tensor_of(DType::f64, {1, 4}, {1, 2, 3, 6});
  const Tensor weight = tensor_of(DType::f64, {4}, {1, 1, 2, 1});
  const Tensor bias = tensor_of(DType::f64, {4}, {0, 1, 0, 0});
  Tensor y = poisoned(DType::f64, {1, 4});
  Tensor mean = poisoned(DType::f64, {1});
  Tensor rstd = poisoned(DType::f64, {1});

  add_norm_forward(ctx, NormKind::layernorm,
                   {.residual = x.view(), .weight = weight.view(), .bias = bias.view()},
                   {.y = y.view(), .mean = mean.view(), .rstd = rstd.view()});
  const double r = 1 / std::sqrt(3.5);
  expect_values(mean.view(), {3}, 1e-12);
  expect_values(rstd.view(), {r}, 1e-12);
  expect_values(y.view(), {-2 * r, -r + 1, 0, 3 * r}, 1e-12);

  add_norm_forward(ctx, NormKind::rmsnorm,
                   {.residual = x.view(), .weight = weight.view(), .eps = 0.5F},
                   {.y = y.view(), .rstd = rstd.view()});
  const double q = 1 / std::sqrt(12.5 + 0.5);
  expect_values(rstd.view(), {q}, 1e-12);
  expect_values(y.view(), {q, 2 * q, 6 * q, 6 * q}, 1e-12);
}

TEST_F(Norm, WithoutANormOnlyTheSumRemains) {
  const Tensor a = tensor_of(DType::f32, {1, 2}, {1, 2});
  const Tensor b = tensor_of(DType::f32, {1, 2}, {10, 20});
  Tensor sum = poisoned(DType::f32, {1, 2});
  Tensor y = poisoned(DType::f32, {1, 2});

  add_norm_forward(ctx, NormKind::none, {.residual = a.view(), .delta = b.view()},
                   {.sum = sum.view(), .y = y.view()});
  expect_values(sum.view(), {11, 22});
  expect_values(y.view(), {11, 22});

  norm_backward(ctx, NormKind::none, a.view(), {},
                {.dsum = y.view(), .accumulate_input = Accumulate::yes});
  expect_values(y.view(), {12, 24});
}

TEST_F(Norm, GradientsMatchDifferences) {
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    NormCase c(DType::f64, 5, 7);
    const Tensor dy = random_tensor(DType::f64, {5, 7}, 9);
    Tensor dsum = poisoned(DType::f64, {5, 7});
    Tensor dweight = poisoned(DType::f64, {7});
    Tensor dbias = poisoned(DType::f64, {7});
    const bool centered = kind == NormKind::layernorm;
    const auto value = [&] {
      c.forward(ctx, kind);
      return inner_product(dy.view(), c.y.view());
    };

    c.forward(ctx, kind);
    norm_backward(ctx, kind, dy.view(),
                  {.sum = c.sum.view(),
                   .weight = c.weight.view(),
                   .mean = centered ? c.mean.view() : View(),
                   .rstd = c.rstd.view()},
                  {.dsum = dsum.view(),
                   .dweight = dweight.view(),
                   .dbias = centered ? dbias.view() : View()});

    expect_gradient("dsum by residual", c.residual.view(), dsum.view(), value);
    expect_gradient("dsum by delta", c.delta.view(), dsum.view(), value);
    expect_gradient("dweight", c.weight.view(), dweight.view(), value);
    if (centered) expect_gradient("dbias", c.bias.view(), dbias.view(), value);
  }
}

/// A frozen norm passes the gradient on and has none of its own.
TEST_F(Norm, BackwardWithoutGradientsOfTheWeights) {
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    NormCase c(DType::f64, 5, 7);
    c.forward(ctx, kind);
    const Tensor dy = random_tensor(DType::f64, {5, 7}, 9);
    const bool centered = kind == NormKind::layernorm;
    const NormSaved saved = {.sum = c.sum.view(),
                             .weight = c.weight.view(),
                             .mean = centered ? c.mean.view() : View(),
                             .rstd = c.rstd.view()};
    Tensor dsum = poisoned(DType::f64, {5, 7});
    Tensor frozen = poisoned(DType::f64, {5, 7});
    Tensor dweight = poisoned(DType::f64, {7});

    norm_backward(ctx, kind, dy.view(), saved, {.dsum = dsum.view(), .dweight = dweight.view()});
    norm_backward(ctx, kind, dy.view(), saved, {.dsum = frozen.view()});

    EXPECT_EQ(to_doubles(frozen.view()), to_doubles(dsum.view()));
  }
}

TEST_F(Norm, BackwardAddsIfAskedAndMayAlias) {
  NormCase c(DType::f64, 3, 5);
  c.forward(ctx, NormKind::layernorm);
  const Tensor dy = random_tensor(DType::f64, {3, 5}, 9);
  const auto backward = [&](CView upstream, Accumulate input, View dsum, Accumulate weight,
                            Tensor& dweight, Tensor& dbias) {
    norm_backward(ctx, NormKind::layernorm, upstream,
                  {.sum = c.sum.view(),
                   .weight = c.weight.view(),
                   .mean = c.mean.view(),
                   .rstd = c.rstd.view()},
                  {.dsum = dsum,
                   .accumulate_input = input,
                   .dweight = dweight.view(),
                   .dbias = dbias.view(),
                   .accumulate_weight = weight});
  };
  Tensor plain = poisoned(DType::f64, {3, 5});
  Tensor dweight = poisoned(DType::f64, {5});
  Tensor dbias = poisoned(DType::f64, {5});
  backward(dy.view(), Accumulate::no, plain.view(), Accumulate::no, dweight, dbias);

  Tensor added = filled_tensor(DType::f64, {3, 5}, 100);
  Tensor dweight_added = filled_tensor(DType::f64, {5}, 10);
  Tensor dbias_added = filled_tensor(DType::f64, {5}, 10);
  backward(dy.view(), Accumulate::yes, added.view(), Accumulate::yes, dweight_added, dbias_added);
  Tensor in_place = dy.clone();
  backward(in_place.view(), Accumulate::no, in_place.view(), Accumulate::no, dweight, dbias);

  const auto plus = [](CView view, double offset) {
    auto values = to_doubles(view);
    for (double& v : values) v += offset;
    return values;
  };
  expect_values(added.view(), plus(plain.view(), 100), 1e-12);
  expect_values(dweight_added.view(), plus(dweight.view(), 10), 1e-12);
  expect_values(dbias_added.view(), plus(dbias.view(), 10), 1e-12);
  EXPECT_TRUE(same_bits(in_place.view(), plain.view()));
}

TEST_F(Norm, BackwardSumsWhatArrivesAndWhatLeaves) {
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    NormCase c(DType::f64, 7, 5);
    c.forward(ctx, kind);
    const Tensor dy = random_tensor(DType::f64, {7, 5}, 9);
    const Tensor arriving = random_tensor(DType::f64, {7, 5}, 10);
    const auto sums_of = [](CView rows, double offset) {
      std::vector<double> sums(5, offset);
      const auto values = to_doubles(rows);
      for (std::size_t i = 0; i < values.size(); ++i) sums[i % 5] += values[i];
      return sums;
    };
    for (const Accumulate weight : {Accumulate::no, Accumulate::yes}) {
      Tensor dsum = arriving.clone();
      Tensor dweight = filled_tensor(DType::f64, {5}, 3);
      Tensor arriving_sums = filled_tensor(DType::f64, {5}, 3);
      Tensor leaving_sums = filled_tensor(DType::f64, {5}, 3);
      norm_backward(ctx, kind, dy.view(),
                    {.sum = c.sum.view(),
                     .weight = c.weight.view(),
                     .mean = kind == NormKind::layernorm ? CView(c.mean.view()) : CView(),
                     .rstd = c.rstd.view()},
                    {.dsum = dsum.view(),
                     .accumulate_input = Accumulate::yes,
                     .dweight = dweight.view(),
                     .accumulate_weight = weight,
                     .arriving_sums = arriving_sums.view(),
                     .leaving_sums = leaving_sums.view()});
      const double offset = weight == Accumulate::yes ? 3 : 0;
      expect_values(arriving_sums.view(), sums_of(arriving.view(), offset), 1e-12);
      expect_values(leaving_sums.view(), sums_of(dsum.view(), offset), 1e-12);
    }
  }
}

TEST_F(Norm, SumMayAliasResidualOrDelta) {
  for (const bool over_residual : {true, false}) {
    NormCase separate(DType::f32, 9, 21);
    NormCase aliased(DType::f32, 9, 21);
    const View sum = over_residual ? aliased.residual.view() : aliased.delta.view();

    separate.forward(ctx, NormKind::rmsnorm);
    add_norm_forward(ctx, NormKind::rmsnorm,
                     {.residual = aliased.residual.view(),
                      .delta = aliased.delta.view(),
                      .weight = aliased.weight.view(),
                      .eps = kEps},
                     {.sum = sum, .y = aliased.y.view(), .rstd = aliased.rstd.view()});

    EXPECT_TRUE(same_bits(sum, separate.sum.view()));
    EXPECT_TRUE(same_bits(aliased.y.view(), separate.y.view()));
  }
}

TEST_F(Norm, ARowOfOneElementHasItsSignAndNoGradient) {
  const Tensor x = tensor_of(DType::f64, {2, 1}, {-3, 5});
  const Tensor weight = tensor_of(DType::f64, {1}, {2});
  Tensor y = poisoned(DType::f64, {2, 1});
  Tensor rstd = poisoned(DType::f64, {2});
  Tensor dweight = poisoned(DType::f64, {1});

  add_norm_forward(ctx, NormKind::rmsnorm, {.residual = x.view(), .weight = weight.view()},
                   {.y = y.view(), .rstd = rstd.view()});
  expect_values(y.view(), {-2, 2}, 1e-14);

  norm_backward(ctx, NormKind::rmsnorm, x.view(),
                {.sum = x.view(), .weight = weight.view(), .rstd = rstd.view()},
                {.dsum = y.view(), .dweight = dweight.view()});
  expect_values(y.view(), {0, 0}, 1e-14);
  expect_values(dweight.view(), {3 + 5}, 1e-14);
}

TEST_F(Norm, WrongOperandsAreNamed) {
  NormCase c(DType::f32, 2, 3);
  const Tensor weight = filled_tensor(DType::f32, {4}, 0);
  Tensor dweight = filled_tensor(DType::f64, {3}, 0);
  expect_error_naming("add_norm_forward weight", [&] {
    add_norm_forward(ctx, NormKind::rmsnorm,
                     {.residual = c.residual.view(), .weight = weight.view(), .eps = kEps},
                     {.y = c.y.view(), .rstd = c.rstd.view()});
  });
  expect_error_naming("add_norm_forward sum", [&] {
    add_norm_forward(ctx, NormKind::rmsnorm,
                     {.residual = c.residual.view(),
                      .delta = c.delta.view(),
                      .weight = c.weight.view(),
                      .eps = kEps},
                     {.y = c.y.view(), .rstd = c.rstd.view()});
  });
  expect_error_naming("add_norm_forward mean", [&] {
    add_norm_forward(ctx, NormKind::layernorm,
                     {.residual = c.residual.view(), .weight = c.weight.view(), .eps = kEps},
                     {.y = c.y.view(), .rstd = c.rstd.view()});
  });
  expect_error_naming("norm_backward dweight", [&] {
    norm_backward(ctx, NormKind::rmsnorm, c.y.view(),
                  {.sum = c.residual.view(), .weight = c.weight.view(), .rstd = c.rstd.view()},
                  {.dsum = c.sum.view(), .dweight = dweight.view()});
  });
  Tensor sums = filled_tensor(DType::f32, {3}, 0);
  const auto with_sums = [&](View of_weight, Accumulate through, View leaving) {
    norm_backward(ctx, NormKind::rmsnorm, c.y.view(),
                  {.sum = c.residual.view(), .weight = c.weight.view(), .rstd = c.rstd.view()},
                  {.dsum = c.sum.view(),
                   .accumulate_input = through,
                   .dweight = of_weight,
                   .arriving_sums = sums.view(),
                   .leaving_sums = leaving});
  };
  expect_error_naming("norm_backward arriving_sums",
                      [&] { with_sums({}, Accumulate::yes, sums.view()); });
  expect_error_naming("norm_backward arriving_sums",
                      [&] { with_sums(sums.view(), Accumulate::no, sums.view()); });
  expect_error_naming("norm_backward leaving_sums",
                      [&] { with_sums(sums.view(), Accumulate::yes, {}); });
}

}  // namespace
}  // namespace hyperslab::ops
