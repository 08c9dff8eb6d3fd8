// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/fp8_product.hpp"

#include <cmath>
#include <cstring>
#include <span>

#include "hyperslab/core/round_up.hpp"
#include "ops/ops_test.hpp"

namespace hyperslab::nn {
namespace {

using namespace hyperslab::test;

constexpr Dim kOutputs = 208;
constexpr Dim kInputs = 272;

Fp8Config config_of(Fp8Recipe recipe) {
  Fp8Config config;
  config.recipe = recipe;
  config.min_width = 16;
  return config;
}

/// (M, N): a b, or a b^T, of values as they are.
std::vector<double> plain(const Tensor& a, const Tensor& b, bool turned) {
  const std::vector<double> left = to_doubles(a.view());
  const std::vector<double> right = to_doubles(b.view());
  const auto K = static_cast<std::size_t>(a.view().shape()[1]);
  const auto N = right.size() / K;
  std::vector<double> out(left.size() / K * N);
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t k = 0; k < K; ++k) {
      out[i] += left[i / N * K + k] * right[turned ? i % N * K + k : k * N + i % N];
    }
  }
  return out;
}

Tensor turned(const Tensor& x) {
  const Dim rows = x.view().shape()[0];
  const Dim columns = x.view().shape()[1];
  Tensor out = poisoned(DType::f32, {columns, rows});
  for (Dim i = 0; i < rows * columns; ++i) {
    out.view().data<float>()[i % columns * rows + i / columns] = x.view().data<float>()[i];
  }
  return out;
}

Tensor identity(Dim size) {
  Tensor out = filled_tensor(DType::f32, {size, size}, 0);
  for (Dim i = 0; i < size; ++i) out.view().data<float>()[i * size + i] = 1;
  return out;
}

/// Length of the difference beside that of the values.
double apart(const Tensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = to_doubles(found.view());
  double difference = 0;
  double length = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    length += expected[i] * expected[i];
  }
  return std::sqrt(difference / length);
}

class Fp8ProductTest : public OpsTest, public testing::WithParamInterface<Fp8Recipe> {
 protected:
  Fp8Product product_{config_of(GetParam()), kOutputs, kInputs, kOutputs, kInputs};
  Tensor weight_ = random_tensor(DType::f32, {kOutputs, kInputs}, 1, 0.1);

  Tensor forward_with(const Tensor& x, const Fp8Product::Kept& kept, CView bias = {}) {
    Tensor y = poisoned(DType::f32, {x.view().shape()[0], kOutputs});
    product_.forward(ctx, x.view(), weight_.view(), bias, kept, y.view());
    return y;
  }
  Tensor forward(const Tensor& x, CView bias = {}) { return forward_with(x, {}, bias); }
  Tensor backward_input(const Tensor& dy, const Fp8Product::Kept& kept = {}) {
    Tensor dx = poisoned(DType::f32, {dy.view().shape()[0], kInputs});
    product_.backward_input(ctx, dy.view(), weight_.view(), kept, dx.view());
    return dx;
  }
  Tensor backward_weight(const Tensor& dy, const Tensor& x, const Fp8Product::Kept& kept = {}) {
    Tensor dweight = filled_tensor(DType::f32, {kOutputs, kInputs}, 1);
    product_.backward_weight(ctx, dy.view(), x.view(), kept, ops::Accumulate::no, dweight.view());
    product_.backward_weight(ctx, dy.view(), x.view(), kept, ops::Accumulate::yes, dweight.view());
    return dweight;
  }
};

TEST_P(Fp8ProductTest, AllThreeAreNearThoseOfTheValuesForAnyNumberOfRows) {
  for (const Dim rows : {64, 71, 129, 300}) {
    const Tensor x = random_tensor(DType::f32, {rows, kInputs}, 2);
    const Tensor dy = random_tensor(DType::f32, {rows, kOutputs}, 3, 1e-3);
    std::vector<double> twice = plain(turned(dy), x, false);
    for (double& value : twice) value *= 2;

    EXPECT_LT(apart(forward(x), plain(x, weight_, true)), 0.05) << rows;
    EXPECT_LT(apart(backward_input(dy), plain(dy, weight_, false)), 0.08) << rows;
    EXPECT_LT(apart(backward_weight(dy, x), twice), 0.08) << rows;
  }
}

TEST_P(Fp8ProductTest, AKeptGradientHasTheSameBits) {
  const Tensor x = random_tensor(DType::f32, {133, kInputs}, 2);
  const Tensor dy = random_tensor(DType::f32, {133, kOutputs}, 3);
  Tensor kept(Device::cpu, DType::u8,
              {Fp8Product::kept_bytes(config_of(GetParam()), kOutputs, 133)});

  const Tensor dx = backward_input(dy, {.gradient = kept.view()});
  const Tensor dweight = backward_weight(dy, x, {.gradient = kept.view()});

  EXPECT_TRUE(same_bits(dx.view(), backward_input(dy).view()));
  EXPECT_TRUE(same_bits(dweight.view(), backward_weight(dy, x).view()));
}

TEST_P(Fp8ProductTest, KeptAmaxesGiveTheSameBits) {
  EXPECT_EQ(product_.keeps_amax(), GetParam() == Fp8Recipe::tensor);
  if (!product_.keeps_amax()) return;
  const Tensor x = random_tensor(DType::f32, {71, kInputs}, 2);
  const Tensor dy = random_tensor(DType::f32, {71, kOutputs}, 3);
  Tensor amax = filled_tensor(DType::f32, {Fp8Product::kAmaxes}, -1);

  const Tensor y = forward_with(x, {.amax = amax.view()});

  EXPECT_TRUE(same_bits(y.view(), forward(x).view()));
  const Fp8Product::Kept kept = {.amax = amax.view()};
  EXPECT_TRUE(same_bits(backward_input(dy, kept).view(), backward_input(dy).view()));
  EXPECT_TRUE(same_bits(backward_weight(dy, x, kept).view(), backward_weight(dy, x).view()));
  Fp8Product::Kept given = kept;  // that of dy was found by backward_input
  given.input = given.output_gradient = ops::Fp8Amax::given;
  EXPECT_TRUE(same_bits(forward_with(x, given).view(), y.view()));
  EXPECT_TRUE(same_bits(backward_input(dy, given).view(), backward_input(dy).view()));
  EXPECT_TRUE(same_bits(backward_weight(dy, x, given).view(), backward_weight(dy, x).view()));

  const Tensor right = amax.clone();
  const auto wrong = [&](const Fp8Product::Kept& which) {  // calls write what they find
    for (Dim i = 0; i < Fp8Product::kAmaxes; ++i) {
      amax.view().data<float>()[i] = 48 * right.view().data<float>()[i];
    }
    return which;
  };
  const Tensor dx = backward_input(dy, wrong(kept));
  EXPECT_FALSE(same_bits(dx.view(), backward_input(dy).view()));
  EXPECT_FALSE(same_bits(backward_input(dy, wrong(given)).view(), dx.view()));
  const Tensor dweight = backward_weight(dy, x, wrong(kept));
  EXPECT_FALSE(same_bits(dweight.view(), backward_weight(dy, x).view()));
  EXPECT_FALSE(same_bits(backward_weight(dy, x, wrong(given)).view(), dweight.view()));
  EXPECT_FALSE(same_bits(forward_with(x, wrong(given)).view(), y.view()));
}

TEST_P(Fp8ProductTest, WeightsThatAreKeptAreThoseOfTheLastPassThatRoundedThem) {
  const Fp8Config config = config_of(GetParam());
  Tensor memory(Device::cpu, DType::u8,
                {static_cast<Dim>(Fp8Product::kept_weight_bytes(config, kOutputs, kInputs))});
  param::KeptFp8 there;
  there.memory = memory.view();
  product_.keep_weights_in(&there);
  const Tensor x = random_tensor(DType::f32, {71, kInputs}, 2);
  const Tensor dy = random_tensor(DType::f32, {71, kOutputs}, 3);
  const Tensor y = forward(x);
  const Tensor dx = backward_input(dy);

  EXPECT_TRUE(same_bits(forward_with(x, {.weights = Fp8Weights::renewed}).view(), y.view()));
  for (float& value : weight_.view().span<float>()) value = -value;
  const Fp8Product::Kept kept = {.weights = Fp8Weights::kept};
  EXPECT_TRUE(same_bits(forward_with(x, kept).view(), y.view()));
  EXPECT_TRUE(same_bits(backward_input(dy, kept).view(), dx.view()));
  const Tensor negative = forward(x);  // which does not ask what is kept
  EXPECT_FALSE(same_bits(negative.view(), y.view()));
  EXPECT_TRUE(same_bits(forward_with(x, {.weights = Fp8Weights::renewed}).view(), negative.view()));
  EXPECT_FALSE(same_bits(backward_input(dy, kept).view(), dx.view()));
}

TEST_P(Fp8ProductTest, RowsDoNotDependOnTheirNumberUnlessAScaleIsThatOfATensor) {
  Tensor x = random_tensor(DType::f32, {128, kInputs}, 2);
  x.view().data<float>()[100 * kInputs] = 30;  // the largest by far
  const Tensor bias = random_tensor(DType::f32, {kOutputs}, 4);
  Tensor first = poisoned(DType::f32, {71, kInputs});
  std::memcpy(first.view().raw(), x.view().raw(), first.view().bytes());

  const Tensor all = forward(x, bias.view());
  const Tensor some = forward(first, bias.view());

  const CView expected = CView(all.view()).slice(0, 71);
  EXPECT_EQ(relative_difference(some.view(), expected) < 1e-6, GetParam() != Fp8Recipe::tensor);
}

TEST_P(Fp8ProductTest, WeightsAreTheSameForwardAndBackwardUnlessAScaleIsThatOfARow) {
  const Tensor there = turned(forward(identity(kInputs)));  // (outputs, inputs)
  const Tensor back = backward_input(identity(kOutputs));

  EXPECT_EQ(relative_difference(there.view(), back.view()) < 1e-6, GetParam() != Fp8Recipe::row);
}

TEST_P(Fp8ProductTest, APlanFindsTheWorkspaceThatAsManyRowsAndFewerNeed) {
  const auto run = [&](Context& context, View x, View weight, View y) {
    product_.forward(context, x, weight, {}, {}, y);
    product_.backward_input(context, y, weight, {}, x);
  };
  const auto on_meta = [](const Shape& shape) {
    return View(nullptr, DType::f32, Device::meta, shape);
  };
  for (const Dim most : {128, 141}) {
    Context plan(Device::meta, 0, Device::cpu);
    run(plan, on_meta({most, kInputs}), on_meta({kOutputs, kInputs}), on_meta({most, kOutputs}));
    Context exact(Device::cpu, plan.workspace_high_water());
    for (const Dim rows : {most, Dim{127}, Dim{71}}) {
      Tensor x = random_tensor(DType::f32, {rows, kInputs}, 2);
      Tensor y = poisoned(DType::f32, {rows, kOutputs});

      EXPECT_NO_THROW(run(exact, x.view(), weight_.view(), y.view())) << rows << " of " << most;
    }
    EXPECT_EQ(exact.workspace_high_water(), plan.workspace_high_water());
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Fp8ProductTest,
                         testing::Values(Fp8Recipe::tensor, Fp8Recipe::row, Fp8Recipe::block));

TEST(Fp8Product, AKeptGradientIsItsValuesAndAScaleForEach128) {
  const Dim values = 4096 * 8192;
  const Dim kept = Fp8Product::kept_bytes(config_of(Fp8Recipe::block), 4096, 8192);

  EXPECT_EQ(kept, values + values / 128 * 4);
}

TEST(Fp8Product, WidthsOfNoMultipleOf16AreRefused) {
  EXPECT_THAT([] { Fp8Product(config_of(Fp8Recipe::block), 208, 200, 208, 200); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("take widths of a multiple of 16")));
}

}  // namespace
}  // namespace hyperslab::nn
