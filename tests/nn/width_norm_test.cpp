// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/width_norm.hpp"

#include <cmath>
#include <optional>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "ops/finite_difference.hpp"
#include "ops/ops_test.hpp"

namespace hyperslab::nn {
namespace {

using namespace hyperslab::test;

constexpr ops::HeadLayout kLayout = {.heads = 3, .kv_heads = 1, .head_width = 4};
constexpr Dim kQueries = 12;
constexpr Dim kKeys = 4;

/// A norm in f64 with random weights.
class WidthNormTest : public OpsTest {
 protected:
  WidthNormTest() {
    store_.begin_unit();
    norm_.emplace(store_, "attention", kLayout, 1e-5F);
    store_.lay_out(1 << 20);
    presence_.allocate(store_, {parameters_, host_, &gradients_},
                       {DType::f64, DType::f64, DType::f64});
    std::uint64_t seed = 10;
    for (const param::Param& param : store_.params()) {
      const Tensor values = random_tensor(DType::f64, param.value.shape(), seed++);
      std::memcpy(param.value.raw(), values.view().raw(), param.value.bytes());
    }
    slot_ = norm_->plan(activations_, {2, 3}, DType::f64, DType::f64, "norm");
  }
  [[nodiscard]] Tensor normalized() {
    Tensor y = qkv_.clone();
    norm_->forward(ctx, y.view(), slot_, scratch_.view());
    return y;
  }
  [[nodiscard]] const param::Param& weight(std::size_t i) const { return store_.params()[i]; }

  param::ParamStore store_;
  Arena host_{"host"};
  Arena parameters_{"parameters", Device::cpu, 1 << 12};
  Arena gradients_{"gradients", Device::cpu, 1 << 12};
  Arena activations_{"activations", Device::cpu, 1 << 14};
  sharding::Presence presence_;
  std::optional<WidthNorm> norm_;
  WidthNorm::Slot slot_;
  Tensor qkv_ = random_tensor(DType::f64, {2, 3, kLayout.packed_width()}, 1);
  Tensor scratch_ = poisoned(DType::f64, {2, 3, kQueries});
};

TEST_F(WidthNormTest, AllQueriesOfATokenTogetherAndAllItsKeys) {
  const auto y = to_doubles(normalized().view());

  const auto x = to_doubles(qkv_.view());
  const auto width = static_cast<std::size_t>(kLayout.packed_width());
  for (std::size_t row = 0; row < 6; ++row) {
    std::vector<double> expected(x.begin() + static_cast<std::ptrdiff_t>(row * width),
                                 x.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    std::size_t first = 0;
    for (std::size_t part = 0; part < 2; ++part) {
      const auto factors = to_doubles(weight(part).value);
      double squares = 0;
      for (std::size_t i = 0; i < factors.size(); ++i) {
        squares += expected[first + i] * expected[first + i];
      }
      const double scale =
          1 / std::sqrt(squares / static_cast<double>(factors.size()) + double{1e-5F});
      for (std::size_t i = 0; i < factors.size(); ++i) expected[first + i] *= scale * factors[i];
      first += factors.size();
    }
    for (std::size_t i = 0; i < width; ++i) EXPECT_NEAR(y[row * width + i], expected[i], 1e-12);
  }
}

TEST_F(WidthNormTest, GradientsAreThoseOfDifferences) {
  const Tensor dy = random_tensor(DType::f64, qkv_.view().shape(), 5);
  const auto value = [&] { return inner_product(dy.view(), normalized().view()); };
  (void)normalized();
  Tensor d = dy.clone();

  norm_->backward(ctx, slot_, ops::Accumulate::no, d.view(), scratch_.view());

  const Tensor query = tensor_of(DType::f64, {kQueries}, to_doubles(weight(0).gradient));
  const Tensor key = tensor_of(DType::f64, {kKeys}, to_doubles(weight(1).gradient));
  expect_gradient("dqkv", qkv_.view(), d.view(), value);
  expect_gradient("dquery", weight(0).value, query.view(), value);
  expect_gradient("dkey", weight(1).value, key.view(), value);
}

}  // namespace
}  // namespace hyperslab::nn
