// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/adapter.hpp"

#include <cmath>
#include <optional>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/nn/linear.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "ops/finite_difference.hpp"
#include "ops/ops_test.hpp"

namespace hyperslab::nn {
namespace {

using namespace hyperslab::test;

constexpr Dim kInputs = 5;
constexpr Dim kRank = 2;
const std::vector<LinearOutput> kOutputs = {{"blocks.0.attention.query", 4},
                                            {"blocks.0.attention.key", 3},
                                            {"blocks.0.attention.value", 3}};

AdapterConfig config_of(std::vector<AdapterTarget> targets) {
  AdapterConfig config;
  config.rank = kRank;
  config.alpha = 3;
  config.targets = std::move(targets);
  return config;
}

/// A layer in f64 with random weights, of which only adapters are trained.
class AdaptedLayer {
 public:
  explicit AdaptedLayer(const AdapterConfig& adapter)
      : linear(store_, {}, kOutputs, {kInputs, true, {.std = 0.5F}, Parallel::column, adapter}) {
    store_.lay_out(1 << 20);
    presence_.allocate(store_, {parameters_, host_, &gradients_},
                       {DType::f64, DType::f64, DType::f64});
    std::uint64_t seed = 10;
    for (const param::Param& param : store_.params()) {
      const Tensor values = random_tensor(DType::f64, param.value.shape(), seed++);
      std::memcpy(param.value.raw(), values.view().raw(), param.value.bytes());
    }
  }
  [[nodiscard]] const param::Param& at(const std::string& name) const {
    for (const param::Param& param : store_.params()) {
      if (param.name == "blocks.0.attention." + name) return param;
    }
    throw std::runtime_error("no parameter " + name);
  }
  [[nodiscard]] const param::ParamStore& store() const { return store_; }

 private:
  static param::ParamStore new_store() {
    param::ParamStore store({}, [](param::Role role) { return role == param::Role::adapter; });
    store.begin_unit();
    return store;
  }
  param::ParamStore store_ = new_store();
  Arena host_{"host"};
  Arena parameters_{"parameters", Device::cpu, 1 << 16};
  Arena gradients_{"gradients", Device::cpu, 1 << 16};
  sharding::Presence presence_;

 public:
  Linear linear;
};

class AdapterTest : public OpsTest {
 protected:
  /// The dropout of a fraction of the inputs; none without one.
  ops::Dropout dropout(float probability) {
    return {probability, 5, dropout_site(0, 1), position_.view(), &state_};
  }
  static constexpr std::uint32_t dropout_site(int layer, int site) {
    return static_cast<std::uint32_t>(layer * 4 + site);
  }
  Tensor x_ = random_tensor(DType::f64, {2, 3, kInputs}, 1);
  Tensor position_ = tensor_of(DType::i64, {2}, {0, 1});
  ops::StepState state_;
};

TEST_F(AdapterTest, AddsTheScaledProductToItsColumnsAlone) {
  const AdaptedLayer adapted(config_of({AdapterTarget::query, AdapterTarget::value}));
  const AdaptedLayer plain(AdapterConfig{});
  Tensor y = poisoned(DType::f64, {2, 3, 10});
  Tensor base = poisoned(DType::f64, {2, 3, 10});

  adapted.linear.forward(ctx, x_.view(), y.view());
  plain.linear.forward(ctx, x_.view(), base.view());

  const std::vector<double> x = to_doubles(x_.view());
  std::vector<double> expected = to_doubles(base.view());
  for (const auto& [name, first, width] : {std::tuple{"query", 0, 4}, std::tuple{"value", 7, 3}}) {
    const auto a = to_doubles(adapted.at(std::string(name) + ".lora_A.weight").value);
    const auto b = to_doubles(adapted.at(std::string(name) + ".lora_B.weight").value);
    for (std::size_t row = 0; row < 6; ++row) {
      for (int column = 0; column < width; ++column) {
        double sum = 0;
        for (std::size_t r = 0; r < kRank; ++r) {
          double dot = 0;
          for (std::size_t k = 0; k < kInputs; ++k)
            dot += x[row * kInputs + k] * a[r * kInputs + k];
          sum += dot * b[static_cast<std::size_t>(column) * kRank + r];
        }
        expected[row * 10 + static_cast<std::size_t>(first + column)] += 1.5 * sum;
      }
    }
  }
  expect_values(y.view(), expected, 1e-12);
}

TEST_F(AdapterTest, GradientsAreThoseOfDifferencesWithAndWithoutDropout) {
  const AdaptedLayer layer(config_of({}));
  const Tensor dy = random_tensor(DType::f64, {2, 3, 10}, 2);
  for (const float probability : {0.0F, 0.4F}) {
    const LinearPass drops = {.dropout = dropout(probability)};
    const auto value = [&] {
      Tensor y = poisoned(DType::f64, {2, 3, 10});
      layer.linear.forward(ctx, x_.view(), y.view(), drops);
      return inner_product(dy.view(), y.view());
    };
    Tensor dx = poisoned(DType::f64, x_.view().shape());

    layer.linear.backward_input(ctx, dy.view(), dx.view(), drops);
    layer.linear.backward_weight(ctx, dy.view(), x_.view(), Accumulate::no, drops);

    expect_gradient("dx", x_.view(), dx.view(), value);
    for (const param::Param& param : layer.store().params()) {
      if (param.role != param::Role::adapter) continue;
      expect_gradient(param.name, param.value, param.gradient, value);
    }
  }
}

/// What forward and backward_input keep is what backward_weight would compute again.
TEST_F(AdapterTest, KeptProductsGiveTheSameGradients) {
  const AdaptedLayer layer(config_of({}));
  const Tensor dy = random_tensor(DType::f64, {2, 3, 10}, 2);
  Tensor y = poisoned(DType::f64, {2, 3, 10});
  Tensor dx = poisoned(DType::f64, x_.view().shape());
  Tensor reduced = poisoned(DType::f64, {2, 3, 3 * kRank});
  Tensor reduced_gradient = poisoned(DType::f64, {2, 3, 3 * kRank});
  LinearPass pass = {.dropout = dropout(0.4F),
                     .reduced = reduced.view(),
                     .reduced_gradient = reduced_gradient.view()};
  layer.linear.backward_weight(ctx, dy.view(), x_.view(), Accumulate::no,
                               {.dropout = pass.dropout});
  std::vector<std::vector<double>> expected;
  for (const param::Param& param : layer.store().params()) {
    if (param.gradient) expected.push_back(to_doubles(param.gradient));
  }

  layer.linear.forward(ctx, x_.view(), y.view(), pass);
  layer.linear.backward_input(ctx, dy.view(), dx.view(), pass);
  pass.has_gradient = true;
  layer.linear.backward_weight(ctx, dy.view(), x_.view(), Accumulate::no, pass);

  std::vector<std::vector<double>> found;
  for (const param::Param& param : layer.store().params()) {
    if (param.gradient) found.push_back(to_doubles(param.gradient));
  }
  EXPECT_EQ(found, expected);
}

/// Pieces that end within a sample drop what the whole pass drops.
TEST_F(AdapterTest, PiecesOfRowsGiveTheWhole) {
  const AdaptedLayer layer(config_of({}));
  LinearPass pass = {.dropout = dropout(0.4F)};
  pass.dropout.first_column = 2;
  pass.dropout.total_columns = 3 * kInputs;
  Tensor whole = poisoned(DType::f64, {2, 3, 10});
  Tensor pieces = poisoned(DType::f64, {6, 10});
  const CView rows = x_.view().reshaped({6, kInputs});

  layer.linear.forward(ctx, x_.view(), whole.view(), pass);
  for (const auto& [begin, count] : {std::pair<Dim, Dim>{0, 2}, {2, 3}, {5, 1}}) {
    layer.linear.forward(ctx, rows.slice(begin, count), pieces.view().slice(begin, count),
                         pass.rows(x_.view(), begin, count));
  }

  expect_values(pieces.view(), to_doubles(whole.view()), 1e-12);
}

TEST_F(AdapterTest, GradientsOfLaterMicrobatchesAreAdded) {
  const AdaptedLayer layer(config_of({AdapterTarget::key}));
  const Tensor dy = random_tensor(DType::f64, {2, 3, 10}, 2);
  const param::Param& b = layer.at("key.lora_B.weight");

  layer.linear.backward_weight(ctx, dy.view(), x_.view(), Accumulate::no);
  std::vector<double> expected = to_doubles(b.gradient);
  for (double& value : expected) value *= 2;
  layer.linear.backward_weight(ctx, dy.view(), x_.view(), Accumulate::yes);

  expect_values(b.gradient, expected, 1e-12);
}

TEST(AdapterConfig, ScalesByRankOrItsRoot) {
  AdapterConfig config;
  config.rank = 16;
  config.alpha = 32;
  EXPECT_FLOAT_EQ(config.scale(), 2);
  config.rank_scaled = true;
  EXPECT_FLOAT_EQ(config.scale(), 8);
}

TEST(AdapterConfig, AppliesToItsTargetsOrToAll) {
  AdapterConfig config = config_of({AdapterTarget::value, AdapterTarget::down});
  EXPECT_TRUE(config.applies_to("blocks.11.attention.value"));
  EXPECT_TRUE(config.applies_to("blocks.0.mlp.down"));
  EXPECT_FALSE(config.applies_to("blocks.0.attention.query"));
  config.targets.clear();
  EXPECT_TRUE(config.applies_to("blocks.0.attention.query"));
  EXPECT_FALSE(config.applies_to("head"));
  config.rank = 0;
  EXPECT_FALSE(config.applies_to("blocks.0.mlp.down"));
}

}  // namespace
}  // namespace hyperslab::nn
