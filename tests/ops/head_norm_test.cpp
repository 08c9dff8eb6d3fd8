// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/head_norm.hpp"

#include "finite_difference.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr float kEps = 1e-5F;
constexpr HeadLayout kLayout = {.heads = 4, .kv_heads = 2, .head_width = 6};
constexpr Dim kNormed = 6;  // query and key heads

class HeadNorm : public OpsTest {};

/// Everything that the op reads and writes, for (B, T) tokens.
struct Case {
  Tensor qkv, query, key, heads, rstd, dquery, dkey;

  Case(DType dtype, Dim B, Dim T)
      : qkv(converted(random_tensor(DType::f32, {B, T, kLayout.packed_width()}, 1).view(), dtype)),
        query(converted(random_tensor(DType::f32, {6}, 2).view(), dtype)),
        key(converted(random_tensor(DType::f32, {6}, 3).view(), dtype)),
        heads(poisoned(dtype, {B, T, kNormed * 6})),
        rstd(poisoned(dtype, {B, T, kNormed})),
        dquery(poisoned(dtype, {6})),
        dkey(poisoned(dtype, {6})) {}

  [[nodiscard]] HeadNormWeights weights() const { return {query.view(), key.view(), kEps}; }
  [[nodiscard]] HeadNormSaved saved() { return {heads.view(), rstd.view()}; }
  /// Of a copy of qkv, nothing kept.
  [[nodiscard]] Tensor normalized(Context& ctx) const {
    Tensor y = qkv.clone();
    head_norm_forward(ctx, kLayout, weights(), y.view(), {});
    return y;
  }
  /// The gradient of qkv for that of the normalized one.
  [[nodiscard]] Tensor backward(Context& ctx, const Tensor& dy, Accumulate accumulate) {
    Tensor y = qkv.clone();
    head_norm_forward(ctx, kLayout, weights(), y.view(), saved());
    Tensor d = dy.clone();
    head_norm_backward(ctx, kLayout, weights(), saved(), d.view(),
                       {dquery.view(), dkey.view(), accumulate});
    return d;
  }
};

TEST_F(HeadNorm, EveryHeadByItselfAndValuesStay) {
  Case c(DType::f64, 2, 3);
  const Tensor y = c.normalized(ctx);

  const auto* before = c.qkv.view().data<double>();
  const auto* after = y.view().data<double>();
  for (Dim row = 0; row < 6; ++row) {
    for (Dim head = 0; head < 8; ++head) {
      const Dim first = row * kLayout.packed_width() + head * 6;
      double squares = 0;
      for (Dim i = 0; i < 6; ++i) squares += before[first + i] * before[first + i] / 6;
      for (Dim i = 0; i < 6; ++i) {
        const Tensor& weight = head < 4 ? c.query : c.key;
        const double factor =
            head < 6 ? weight.view().data<double>()[i] / std::sqrt(squares + double{kEps}) : 1;
        ASSERT_NEAR(after[first + i], before[first + i] * factor, 1e-12) << row << " " << head;
      }
    }
  }
}

TEST_F(HeadNorm, KeepsHeadsAsTheyWere) {
  Case c(DType::f64, 1, 2);
  Tensor y = c.qkv.clone();
  head_norm_forward(ctx, kLayout, c.weights(), y.view(), c.saved());

  EXPECT_EQ(to_doubles(y.view()), to_doubles(c.normalized(ctx).view()));
  const auto all = to_doubles(c.qkv.view());
  for (Dim row = 0; row < 2; ++row) {
    for (Dim i = 0; i < kNormed * 6; ++i) {
      EXPECT_EQ(c.heads.view().data<double>()[row * kNormed * 6 + i],
                all[static_cast<std::size_t>(row * kLayout.packed_width() + i)]);
    }
  }
}

TEST_F(HeadNorm, GradientsMatchDifferences) {
  Case c(DType::f64, 2, 3);
  const Tensor dy = random_tensor(DType::f64, c.qkv.view().shape(), 5);

  const Tensor d = c.backward(ctx, dy, Accumulate::no);

  const auto value = [&] { return inner_product(dy.view(), c.normalized(ctx).view()); };
  expect_gradient("dqkv", c.qkv.view(), d.view(), value);
  expect_gradient("dquery", c.query.view(), c.dquery.view(), value);
  expect_gradient("dkey", c.key.view(), c.dkey.view(), value);
}

TEST_F(HeadNorm, AddsToGradientsIfAskedAndLeavesFrozenOnes) {
  Case c(DType::f64, 1, 3);
  const Tensor dy = random_tensor(DType::f64, c.qkv.view().shape(), 5);
  const Tensor d = c.backward(ctx, dy, Accumulate::no);
  const auto once = to_doubles(c.dkey.view());

  (void)c.backward(ctx, dy, Accumulate::yes);

  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_NEAR(to_doubles(c.dkey.view())[i], 2 * once[i], 1e-12);
  }
  Tensor frozen = dy.clone();
  head_norm_backward(ctx, kLayout, c.weights(), c.saved(), frozen.view(), {});
  EXPECT_EQ(to_doubles(frozen.view()), to_doubles(d.view()));
}

TEST_F(HeadNorm, WrongOperandsAreNamed) {
  Case c(DType::f64, 1, 2);
  const Tensor wide = filled_tensor(DType::f64, {7}, 0);
  expect_error_naming("head_norm key weight", [&] {
    head_norm_forward(ctx, kLayout, {c.query.view(), wide.view(), kEps}, c.qkv.view(), {});
  });
  expect_error_naming("saved nothing",
                      [&] { head_norm_backward(ctx, kLayout, c.weights(), {}, c.qkv.view(), {}); });
}

}  // namespace
}  // namespace hyperslab::ops
