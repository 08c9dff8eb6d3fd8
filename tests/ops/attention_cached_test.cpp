// SPDX-License-Identifier: Apache-2.0
#include "attention_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class AttentionCached : public OpsTest {};

/// Rows [first, first + count) of every sample.
Tensor token_rows(CView view, Dim first, Dim count) {
  const auto [B, T, width] = view.dims<3>("token_rows");
  const auto all = to_doubles(view);
  std::vector<double> values;
  for (Dim b = 0; b < B; ++b) {
    const auto begin = all.begin() + (b * T + first) * width;
    values.insert(values.end(), begin, begin + count * width);
  }
  return tensor_of(view.dtype(), {B, count, width}, values);
}

TEST_F(AttentionCached, EqualsTheFullPathHoweverTheTokensArrive) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const auto& parts : {std::vector<Dim>{1, 1, 1, 1, 1}, {13, 1, 1, 40, 1}, {3, 33, 2}}) {
      Dim tokens = 0;
      for (const Dim part : parts) tokens += part;
      AttentionCase full({2, tokens, {6, 2, 17}}, dtype);
      if (parts.front() == 13) full.size.mask.window = 11;
      if (parts.front() == 3) full.size.softcap = 0.7;
      full.forward(ctx);
      Tensor keys = poisoned(dtype, {2, 70, 34});
      Tensor values = poisoned(dtype, {2, 70, 34});
      Dim past = 0;
      for (const Dim part : parts) {
        Tensor qkv = token_rows(full.qkv.view(), past, part);
        Tensor out = poisoned(dtype, {2, part, 102});

        attention_cached_forward(ctx, full.size.layout, full.scores(), {}, qkv.view(),
                                 {keys.view(), values.view(), past}, out.view());

        expect_close(out.view(), token_rows(full.out.view(), past, part).view(), "out", 0.1);
        past += part;
      }
    }
  }
}

TEST_F(AttentionCached, TheCacheHoldsKeysAndValues) {
  const HeadLayout layout = {2, 1, 2};
  Tensor qkv = tensor_of(DType::f32, {1, 1, 8}, {0, 0, 0, 0, 1, 2, 3, 4});
  Tensor keys = filled_tensor(DType::f32, {1, 3, 2}, 9);
  Tensor values = filled_tensor(DType::f32, {1, 3, 2}, 9);
  Tensor out = poisoned(DType::f32, {1, 1, 4});

  attention_cached_forward(ctx, layout, kCausal, {}, qkv.view(), {keys.view(), values.view(), 1},
                           out.view());

  expect_values(keys.view(), {9, 9, 1, 2, 9, 9});
  expect_values(values.view(), {9, 9, 3, 4, 9, 9});
  expect_values(out.view(), {6, 6.5, 6, 6.5});  // a query of zeros takes the mean
}

TEST_F(AttentionCached, WrongOperandsAreNamed) {
  AttentionCase c({1, 2, {2, 1, 4}}, DType::f32);
  Tensor keys = filled_tensor(DType::f32, {1, 4, 4}, 0);
  Tensor wide = filled_tensor(DType::f32, {1, 4, 8}, 0);
  expect_error_naming("attention_cached_forward past", [&] {
    attention_cached_forward(ctx, c.size.layout, kCausal, {}, c.qkv.view(),
                             {keys.view(), keys.view(), 3}, c.out.view());
  });
  expect_error_naming("attention_cached_forward values", [&] {
    attention_cached_forward(ctx, c.size.layout, kCausal, {}, c.qkv.view(),
                             {keys.view(), wide.view(), 0}, c.out.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
