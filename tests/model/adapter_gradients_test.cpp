// SPDX-License-Identifier: Apache-2.0
// With adapters nothing before the first block trains, so the gradient of its input is left out:
// what the adapters learn from is that of a model which computes it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "hyperslab/core/ledger.hpp"
#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using ops::Trans;
using test::small_model;
using test::small_stage;
using test::StageHarness;

constexpr Dim kRank = 4;
constexpr double kScale = 2;  // alpha / rank

StageOptions with_adapters(StageOptions options) {
  options.adapter.rank = kRank;
  options.adapter.alpha = kScale * kRank;
  return options;
}

/// A row-major matrix in fp64.
struct Matrix {
  Dim rows = 0;
  Dim columns = 0;
  std::vector<double> values;
  [[nodiscard]] double at(Dim i, Dim j) const {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
};

Matrix matrix_of(CView view) {
  return {view.shape()[0], view.shape().numel() / view.shape()[0], test::to_doubles(view)};
}

/// scale op(a) op(b).
Matrix product(const Matrix& a, Trans trans_a, const Matrix& b, Trans trans_b) {
  const auto get = [](const Matrix& m, Trans trans, Dim i, Dim j) {
    return trans == Trans::no ? m.at(i, j) : m.at(j, i);
  };
  const Dim inner = trans_a == Trans::no ? a.columns : a.rows;
  Matrix out{
      trans_a == Trans::no ? a.rows : a.columns, trans_b == Trans::no ? b.columns : b.rows, {}};
  for (Dim i = 0; i < out.rows; ++i) {
    for (Dim j = 0; j < out.columns; ++j) {
      double sum = 0;
      for (Dim k = 0; k < inner; ++k) sum += get(a, trans_a, i, k) * get(b, trans_b, k, j);
      out.values.push_back(kScale * sum);
    }
  }
  return out;
}

void expect_close(const Matrix& found, const Matrix& expected, const std::string& name) {
  ASSERT_EQ(found.values.size(), expected.values.size()) << name;
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < found.values.size(); ++i) {
    difference += std::pow(found.values[i] - expected.values[i], 2);
    norm += std::pow(expected.values[i], 2);
  }
  EXPECT_GT(norm, 0) << name;
  EXPECT_LT(std::sqrt(difference), 1e-4 * std::sqrt(norm)) << name;
}

std::map<std::string, const param::Param*> by_name(const StageHarness& harness) {
  std::map<std::string, const param::Param*> found;
  for (const param::Param& param : harness.stage->params().params()) found[param.name] = &param;
  return found;
}

void set(const param::Param& param, const std::vector<double>& values) {
  auto out = param.value.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(values[i]);
}

class FirstBlock
    : public testing::TestWithParam<std::tuple<Family, NormPlace, bool, nn::Recompute>> {
 protected:
  [[nodiscard]] static ModelSpec spec() {
    const auto [family, place, parallel, recompute] = GetParam();
    ModelSpec spec = small_model(family);
    spec.norm_place = place;
    spec.parallel_block = parallel;
    spec.init_std = 0.2;
    return spec;
  }
  [[nodiscard]] static StageOptions options() {
    StageOptions options = small_stage(2, 8, true);
    options.recompute = std::get<3>(GetParam());
    return options;
  }
};

/// The gradients of B and A follow from that of the whole matrix W + s B A: s dW A^T and s B^T dW.
TEST_P(FirstBlock, AdaptersHaveTheGradientsOfAModelThatComputesAllOfThem) {
  StageOptions matrices = options();
  matrices.trained_roles = {param::Role::matrix};
  StageHarness whole(spec(), matrices);
  StageHarness adapted(spec(), with_adapters(options()));
  const auto in_whole = by_name(whole);
  const auto in_adapted = by_name(adapted);
  std::vector<std::string> layers;
  std::uint64_t seed = 100;
  for (const auto& [name, param] : in_adapted) {
    const std::size_t at = name.find(".lora_B.weight");
    if (at == std::string::npos) {
      if (in_whole.contains(name)) set(*in_whole.at(name), test::to_doubles(param->value));
      continue;
    }
    const Tensor values = test::random_tensor(DType::f64, param->value.shape(), seed++);
    set(*param, test::to_doubles(values.view()));
    layers.push_back(name.substr(0, at));
  }
  for (const std::string& layer : layers) {
    const Matrix b = matrix_of(in_adapted.at(layer + ".lora_B.weight")->value);
    const Matrix a = matrix_of(in_adapted.at(layer + ".lora_A.weight")->value);
    Matrix sum = product(b, Trans::no, a, Trans::no);
    const auto base = test::to_doubles(in_adapted.at(layer + ".weight")->value);
    for (std::size_t i = 0; i < base.size(); ++i) sum.values[i] += base[i];
    set(*in_whole.at(layer + ".weight"), sum.values);
  }

  const double loss = adapted.forward(Mode::train);
  EXPECT_NEAR(whole.forward(Mode::train), loss, 1e-4 * loss);
  adapted.backward();
  whole.backward();

  EXPECT_EQ(layers.size(), in_adapted.contains("blocks.0.mlp.gate.weight") ? 21U : 18U);
  for (const std::string& layer : layers) {
    const Matrix of_whole = matrix_of(in_whole.at(layer + ".weight")->gradient);
    const param::Param& a = *in_adapted.at(layer + ".lora_A.weight");
    const param::Param& b = *in_adapted.at(layer + ".lora_B.weight");
    expect_close(matrix_of(b.gradient),
                 product(of_whole, Trans::no, matrix_of(a.value), Trans::yes), b.name);
    expect_close(matrix_of(a.gradient),
                 product(matrix_of(b.value), Trans::yes, of_whole, Trans::no), a.name);
  }
}

/// Products of a step's backward pass, counted on `meta`.
std::int64_t input_gradients(const ModelSpec& spec, const StageOptions& options) {
  Arenas measuring = Arenas::measuring();
  Context meta(Device::meta);
  sharding::Presence presence;
  Stage stage(spec, options, measuring, presence);
  const View sums(nullptr, DType::f32, Device::meta, {ops::kSumCount});
  for (int unit = 0; unit < stage.units(); ++unit) {
    stage.forward(meta, {}, unit, Mode::train, {nullptr, sums}, nn::Accumulate::no);
  }
  std::int64_t before = 0;
  const auto count = [&] {
    std::int64_t calls = 0;
    for (const auto& [key, work] : meta.ledger().rows()) {
      if (key.first == "attention" && key.second == "linear_backward_input") calls += work.calls;
    }
    return calls;
  };
  before = count();
  for (int unit = stage.units() - 1; unit >= 0; --unit) {
    stage.backward(meta, {}, unit, {nullptr, sums}, nn::Accumulate::no);
  }
  return count() - before;
}

/// Of each block's attention the gradients of two inputs; of the first with adapters one.
TEST_P(FirstBlock, TheGradientOfItsInputIsNotComputedWithAdapters) {
  const ModelSpec model = spec();
  const auto all = 2 * static_cast<std::int64_t>(model.layers);

  EXPECT_EQ(input_gradients(model, options()), all);
  EXPECT_EQ(input_gradients(model, with_adapters(options())), all - 1);
}

INSTANTIATE_TEST_SUITE_P(
    Models, FirstBlock,
    testing::Values(std::tuple(Family::gpt2, NormPlace::pre, false, nn::Recompute::none),
                    std::tuple(Family::gpt2, NormPlace::pre, false, nn::Recompute::selective),
                    std::tuple(Family::llama, NormPlace::pre, false, nn::Recompute::none),
                    std::tuple(Family::llama, NormPlace::pre, false, nn::Recompute::full),
                    std::tuple(Family::llama, NormPlace::sandwich, false, nn::Recompute::none),
                    std::tuple(Family::llama, NormPlace::pre, true, nn::Recompute::none),
                    std::tuple(Family::gpt2, NormPlace::post, false, nn::Recompute::none)));

}  // namespace
}  // namespace hyperslab::model
