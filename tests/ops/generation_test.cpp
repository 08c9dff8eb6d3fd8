// SPDX-License-Identifier: Apache-2.0
// Ops that generation has besides those of training.
#include <limits>

#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/argmax.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Generation : public OpsTest {};

std::vector<double> argmax_of(Context& ctx, DType dtype, Dim V, const std::vector<double>& values) {
  const auto columns = static_cast<Dim>(values.size() / 2);
  const Tensor x = tensor_of(dtype, {2, columns}, values);
  Tensor index(Device::cpu, DType::i32, {2});
  argmax(ctx, x.view(), V, index.view());
  return to_doubles(index.view());
}

TEST_F(Generation, ArgmaxIsTheFirstOfTheLargestWithinTheVocabulary) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    EXPECT_EQ(argmax_of(ctx, dtype, 3, {1, 4, 4, 9, -2, -3, -1, 0}), (std::vector<double>{1, 2}));
  }
}

TEST_F(Generation, ArgmaxReportsWhatIsNoNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(argmax_of(ctx, DType::f32, 2, {1, std::nan(""), kInfinity, 0}),
            (std::vector<double>{-1, -1}));
  EXPECT_EQ(argmax_of(ctx, DType::f32, 2, {-kInfinity, 3, -kInfinity, -kInfinity}),
            (std::vector<double>{1, -1}));
  Tensor index(Device::cpu, DType::i32, {1});
  expect_error_naming("argmax", [&] {
    argmax(ctx, random_tensor(DType::f32, {1, 3}, 1).view(), 4, index.view());
  });
}

TEST_F(Generation, ColumnsAreTakenAndPut) {
  const Tensor wide = tensor_of(DType::f64, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7});
  Tensor narrow = poisoned(DType::f64, {2, 2});
  Tensor other = tensor_of(DType::f64, {2, 3}, {9, 9, 9, 9, 9, 9});

  take_columns(ctx, wide.view(), 1, narrow.view());
  put_columns(ctx, narrow.view(), 0, other.view());

  EXPECT_EQ(to_doubles(narrow.view()), (std::vector<double>{1, 2, 5, 6}));
  EXPECT_EQ(to_doubles(other.view()), (std::vector<double>{1, 2, 9, 5, 6, 9}));
  expect_error_naming("columns", [&] { take_columns(ctx, wide.view(), 3, narrow.view()); });
}

TEST_F(Generation, GatedProductsAreTheirTwoOps) {
  const Tensor x = random_tensor(DType::f64, {3, 5}, 1);
  const Tensor weight = random_tensor(DType::f64, {8, 5}, 2);
  const Tensor bias = random_tensor(DType::f64, {8}, 3);
  Tensor pre = poisoned(DType::f64, {3, 8});
  Tensor room = poisoned(DType::f64, {3, 8});
  Tensor expected = poisoned(DType::f64, {3, 4});
  Tensor y = poisoned(DType::f64, {3, 4});
  linear_forward(ctx, x.view(), weight.view(), bias.view(), pre.view());
  gated_forward(ctx, Activation::geglu, pre.view(), expected.view());

  linear_gated_forward(ctx, x.view(), weight.view(), bias.view(), Activation::geglu, room.view(),
                       y.view());

  EXPECT_EQ(to_doubles(y.view()), to_doubles(expected.view()));
  expect_error_naming("linear_gated_forward", [&] {
    linear_gated_forward(ctx, x.view(), weight.view(), {}, Activation::gelu, room.view(), y.view());
  });
}

TEST_F(Generation, RopeAndCachedAttentionAreTheirTwoOps) {
  const HeadLayout layout = {.heads = 2, .kv_heads = 1, .head_width = 4};
  const std::vector<double> frequencies = {1, 0.1};
  Tensor cosines = poisoned(DType::f64, {6, 2});
  Tensor sines = poisoned(DType::f64, {6, 2});
  rope_table(ctx, frequencies, 1, cosines.view(), sines.view());
  const auto run = [&](bool together) {
    Tensor qkv = random_tensor(DType::f64, {1, 2, 16}, 1);
    Tensor keys = random_tensor(DType::f64, {1, 6, 4}, 2);
    Tensor values = random_tensor(DType::f64, {1, 6, 4}, 3);
    Tensor out = poisoned(DType::f64, {1, 2, 8});
    const KeyValueCache cache = {keys.view(), values.view(), 3};
    if (together) {
      attention_cached_forward(ctx, layout, AttentionMask(), {cosines.view(), sines.view()},
                               qkv.view(), cache, out.view());
    } else {
      rope(ctx, layout, cosines.view(), sines.view(), 3, Rotation::forward, qkv.view());
      attention_cached_forward(ctx, layout, AttentionMask(), {}, qkv.view(), cache, out.view());
    }
    auto all = to_doubles(out.view());
    const auto cached = to_doubles(keys.view());
    all.insert(all.end(), cached.begin(), cached.end());
    return all;
  };

  EXPECT_EQ(run(true), run(false));
}

}  // namespace
}  // namespace hyperslab::ops
