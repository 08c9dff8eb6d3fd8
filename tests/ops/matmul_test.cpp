// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/matmul.hpp"

#include "finite_difference.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Matmul : public OpsTest {};

Shape stored(Dim rows, Dim columns, Trans trans) {
  return trans == Trans::no ? Shape{rows, columns} : Shape{columns, rows};
}

/// op(a) op(b) by the definition, in double.
std::vector<double> product_by_definition(CView a, Trans trans_a, CView b, Trans trans_b, Dim M,
                                          Dim N, Dim K) {
  const auto x = to_doubles(a);
  const auto y = to_doubles(b);
  std::vector<double> c(static_cast<std::size_t>(M * N));
  for (Dim i = 0; i < M; ++i) {
    for (Dim j = 0; j < N; ++j) {
      for (Dim k = 0; k < K; ++k) {
        c[i * N + j] += x[trans_a == Trans::no ? i * K + k : k * M + i] *
                        y[trans_b == Trans::no ? k * N + j : j * K + k];
      }
    }
  }
  return c;
}

TEST_F(Matmul, MatchesTheDefinitionForAllLayoutsAndAwkwardSizes) {
  for (const auto& [M, N, K] : {std::array<Dim, 3>{1, 1, 1}, {2, 3, 4}, {7, 13, 5}, {17, 1, 31}}) {
    for (const Trans trans_a : {Trans::no, Trans::yes}) {
      for (const Trans trans_b : {Trans::no, Trans::yes}) {
        const Tensor a = random_tensor(DType::f32, stored(M, K, trans_a), 1);
        const Tensor b = random_tensor(DType::f32, stored(K, N, trans_b), 2);
        Tensor c = poisoned(DType::f32, {M, N});

        matmul(ctx, a.view(), trans_a, b.view(), trans_b, Accumulate::no, c.view());

        const Tensor expected =
            tensor_of(DType::f64, {M, N},
                      product_by_definition(a.view(), trans_a, b.view(), trans_b, M, N, K));
        expect_matches_oracle(c.view(), expected.view(), "c");
      }
    }
  }
}

TEST_F(Matmul, AccumulatesIfAsked) {
  const Tensor a = tensor_of(DType::f64, {1, 2}, {1, 2});
  const Tensor b = tensor_of(DType::f64, {2, 1}, {3, 4});
  Tensor c = filled_tensor(DType::f64, {1, 1}, 100);

  matmul(ctx, a.view(), Trans::no, b.view(), Trans::no, Accumulate::yes, c.view());

  expect_values(c.view(), {111});
}

/// Of all rows at once, and of some of them alone.
void expect_rows_have_the_same_bits(Context& ctx, DType dtype, Dim M, Dim N, Dim K,
                                    Accumulate accumulate) {
  SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << M << "x" << N << "x" << K);
  const Tensor x = random_tensor(dtype, {M, K}, 1);
  const Tensor weight = random_tensor(dtype, {N, K}, 2);
  const Tensor bias = random_tensor(dtype, {N}, 3);
  const Tensor before = random_tensor(dtype, {M, N}, 4);
  const auto product = [&](Dim first, Dim count) {
    Tensor y = converted(before.view().slice(first, count), dtype);
    const auto forward = accumulate == Accumulate::yes ? linear_forward_add : linear_forward;
    forward(ctx, x.view().slice(first, count), weight.view(), bias.view(), y.view());
    return y;
  };
  const Tensor whole = product(0, M);
  for (const Dim count : {Dim{1}, Dim{2}, Dim{5}, Dim{9}, M - 1}) {
    for (Dim first = 0; first + count <= M; first += count) {
      EXPECT_TRUE(same_bits(product(first, count).view(), whole.view().slice(first, count)))
          << count << " rows from " << first;
    }
  }
  Context usual{Device::cpu, std::size_t{8} << 20};
  Tensor y = converted(before.view(), dtype);
  const auto forward = accumulate == Accumulate::yes ? linear_forward_add : linear_forward;
  forward(usual, x.view(), weight.view(), bias.view(), y.view());
  EXPECT_LE(relative_difference(whole.view(), y.view()), tolerance(dtype));
}

TEST_F(Matmul, ARowHasTheSameBitsInProductsOfAnyHeightIfDeterministic) {
  ctx.set_deterministic(true);
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      expect_rows_have_the_same_bits(ctx, dtype, 71, 50, 33, accumulate);
      expect_rows_have_the_same_bits(ctx, dtype, 30, 300, 517, accumulate);
      expect_rows_have_the_same_bits(ctx, dtype, 13, 3, 1, accumulate);
    }
  }
}

/// Columns of wider matrices, copied into matrices of their own.
Tensor copied(const CColumns& columns) {
  const Dim rows = columns.matrix.shape()[0];
  const Dim width = columns.matrix.shape()[1];
  const std::vector<double> all = to_doubles(columns.matrix);
  std::vector<double> part;
  for (Dim row = 0; row < rows; ++row) {
    const auto begin = all.begin() + row * width + columns.first;
    part.insert(part.end(), begin, begin + columns.count);
  }
  return tensor_of(DType::f64, {rows, columns.count}, part);
}

TEST_F(Matmul, ColumnsOfWiderMatricesAreMultipliedAndTheOthersStay) {
  const Tensor a = random_tensor(DType::f64, {6, 9}, 1);
  const Tensor b = random_tensor(DType::f64, {4, 11}, 2);
  const Tensor tall = random_tensor(DType::f64, {6, 11}, 3);
  const struct {
    CColumns a, b;
    Dim M, N, K;
  } cases[] = {{{a.view(), 2, 4}, {b.view(), 3, 5}, 6, 5, 4},
               {{a.view(), 1, 3, Trans::yes}, {tall.view(), 6, 5}, 3, 5, 6},
               {{a.view(), 0, 5}, {tall.view(), 4, 5, Trans::yes}, 6, 6, 5}};
  for (const auto& [left, right, M, N, K] : cases) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      Tensor c = random_tensor(DType::f64, {M, N + 3}, 4);
      const std::vector<double> before = to_doubles(c.view());
      const Tensor dense_a = copied(left);
      const Tensor dense_b = copied(right);
      const std::vector<double> product =
          product_by_definition(dense_a.view(), left.trans, dense_b.view(), right.trans, M, N, K);

      matmul_columns(ctx, left, right, 0.5F, accumulate, {c.view(), 2, N});

      const std::vector<double> after = to_doubles(c.view());
      for (Dim i = 0; i < M; ++i) {
        for (Dim j = 0; j < N + 3; ++j) {
          const bool inside = j >= 2 && j < N + 2;
          const double old = before[i * (N + 3) + j];
          const double base = inside && accumulate == Accumulate::no ? 0 : old;
          const double expected = base + (inside ? 0.5 * product[i * N + j - 2] : 0);
          ASSERT_NEAR(after[i * (N + 3) + j], expected, 1e-12) << i << ", " << j;
        }
      }
    }
  }
}

TEST_F(Matmul, ColumnsThatDoNotFitAreNamed) {
  const Tensor a = filled_tensor(DType::f32, {2, 3}, 0);
  const Tensor b = filled_tensor(DType::f32, {2, 4}, 0);
  Tensor c = filled_tensor(DType::f32, {2, 6}, 0);
  const auto multiply = [&](const CColumns& left, const CColumns& right, const Columns& out) {
    matmul_columns(ctx, left, right, 1, Accumulate::no, out);
  };
  expect_error_naming("matmul_columns a", [&] {
    multiply({a.view(), 2, 2}, {b.view(), 0, 4}, {c.view(), 0, 4});
  });
  expect_error_naming("matmul_columns b", [&] {
    multiply({a.view(), 0, 3}, {b.view(), 0, 4}, {c.view(), 0, 4});
  });
  expect_error_naming("matmul_columns c", [&] {
    multiply({a.view(), 0, 2}, {b.view(), 0, 4}, {c.view(), 0, 5});
  });
}

TEST_F(Matmul, WrongOperandsAreNamed) {
  const Tensor a = filled_tensor(DType::f32, {2, 3}, 0);
  const Tensor b = filled_tensor(DType::f32, {4, 5}, 0);
  Tensor c = filled_tensor(DType::f32, {2, 5}, 0);
  expect_error_naming("matmul b", [&] {
    matmul(ctx, a.view(), Trans::no, b.view(), Trans::no, Accumulate::no, c.view());
  });
  expect_error_naming("matmul c", [&] {
    matmul(ctx, a.view(), Trans::yes, a.view(), Trans::no, Accumulate::no, c.view());
  });
  const Tensor half = filled_tensor(DType::f16, {2, 2}, 0);
  Tensor single = filled_tensor(DType::f32, {2, 2}, 0);
  expect_error_naming("CPU ranks compute in f32 or f64", [&] {
    matmul(ctx, half.view(), Trans::no, half.view(), Trans::no, Accumulate::no, single.view());
  });
}

class Linear : public OpsTest {};

TEST_F(Linear, ForwardByHand) {
  const Tensor x = tensor_of(DType::f32, {1, 2}, {1, 2});
  const Tensor weight = tensor_of(DType::f32, {3, 2}, {1, 0, 0, 1, 1, 1});
  const Tensor bias = tensor_of(DType::f32, {3}, {10, 20, 30});
  Tensor y = poisoned(DType::f32, {1, 3});

  linear_forward(ctx, x.view(), weight.view(), bias.view(), y.view());
  expect_values(y.view(), {11, 22, 33});

  linear_forward(ctx, x.view(), weight.view(), {}, y.view());
  expect_values(y.view(), {1, 2, 3});
}

TEST_F(Linear, ForwardAddsToWhatIsThere) {
  const Tensor x = tensor_of(DType::f32, {2, 2}, {1, 2, 3, 4});
  const Tensor weight = tensor_of(DType::f32, {3, 2}, {1, 0, 0, 1, 1, 1});
  const Tensor bias = tensor_of(DType::f32, {3}, {10, 20, 30});
  Tensor y = tensor_of(DType::f32, {2, 3}, {100, 200, 300, 400, 500, 600});

  linear_forward_add(ctx, x.view(), weight.view(), bias.view(), y.view());
  expect_values(y.view(), {111, 222, 333, 413, 524, 637});

  linear_forward_add(ctx, x.view(), weight.view(), {}, y.view());
  expect_values(y.view(), {112, 224, 336, 416, 528, 644});
}

TEST_F(Linear, GradientsMatchDifferences) {
  Tensor x = random_tensor(DType::f64, {2, 3, 5}, 1);
  Tensor weight = random_tensor(DType::f64, {7, 5}, 2);
  Tensor bias = random_tensor(DType::f64, {7}, 3);
  const Tensor dy = random_tensor(DType::f64, {2, 3, 7}, 4);
  Tensor y = poisoned(DType::f64, {2, 3, 7});
  const auto value = [&] {
    linear_forward(ctx, x.view(), weight.view(), bias.view(), y.view());
    return inner_product(dy.view(), y.view());
  };
  Tensor dx = poisoned(DType::f64, {2, 3, 5});
  Tensor dweight = poisoned(DType::f64, {7, 5});
  Tensor dbias = poisoned(DType::f64, {7});

  linear_backward_input(ctx, dy.view(), weight.view(), Accumulate::no, dx.view());
  linear_backward_weight(ctx, dy.view(), x.view(), Accumulate::no, dweight.view(), dbias.view());

  expect_gradient("dx", x.view(), dx.view(), value);
  expect_gradient("dweight", weight.view(), dweight.view(), value);
  expect_gradient("dbias", bias.view(), dbias.view(), value);
}

/// Of a frozen weight: the same bits as with the weight's gradient.
TEST_F(Linear, TheGradientOfABiasAlone) {
  const Tensor x = random_tensor(DType::f32, {131, 5}, 1);
  const Tensor dy = random_tensor(DType::f32, {131, 67}, 4);
  Tensor dweight = poisoned(DType::f32, {67, 5});
  Tensor with_weight = poisoned(DType::f32, {67});
  Tensor alone = poisoned(DType::f32, {67});

  linear_backward_weight(ctx, dy.view(), x.view(), Accumulate::no, dweight.view(),
                         with_weight.view());
  linear_backward_weight(ctx, dy.view(), x.view(), Accumulate::no, {}, alone.view());

  EXPECT_EQ(to_doubles(alone.view()), to_doubles(with_weight.view()));
  expect_error_naming("neither dweight nor dbias", [&] {
    linear_backward_weight(ctx, dy.view(), x.view(), Accumulate::no, {}, {});
  });
}

TEST_F(Linear, GradientsAccumulate) {
  const Tensor x = random_tensor(DType::f64, {131, 5}, 1);
  const Tensor weight = random_tensor(DType::f64, {67, 5}, 2);
  const Tensor dy = random_tensor(DType::f64, {131, 67}, 4);
  std::vector<Tensor> once;
  std::vector<Tensor> twice;
  for (auto* list : {&once, &twice}) {
    list->push_back(poisoned(DType::f64, {131, 5}));
    list->push_back(poisoned(DType::f64, {67, 5}));
    list->push_back(poisoned(DType::f64, {67}));
  }
  const auto backward = [&](Accumulate accumulate, std::vector<Tensor>& out) {
    linear_backward_input(ctx, dy.view(), weight.view(), accumulate, out[0].view());
    linear_backward_weight(ctx, dy.view(), x.view(), accumulate, out[1].view(), out[2].view());
  };

  backward(Accumulate::no, once);
  backward(Accumulate::no, twice);
  backward(Accumulate::yes, twice);

  for (std::size_t i = 0; i < once.size(); ++i) {
    auto doubled = to_doubles(once[i].view());
    for (double& v : doubled) v *= 2;
    expect_values(twice[i].view(), doubled, 1e-9);
  }
}

TEST_F(Linear, ActivationIsTheLinearLayerFollowedByTheActivation) {
  const Tensor x = random_tensor(DType::f32, {19, 11}, 1);
  const Tensor weight = random_tensor(DType::f32, {23, 11}, 2);
  const Tensor bias = random_tensor(DType::f32, {23}, 3);
  Tensor pre = poisoned(DType::f32, {19, 23});
  Tensor y = poisoned(DType::f32, {19, 23});
  Tensor expected_pre = poisoned(DType::f32, {19, 23});
  Tensor expected_y = poisoned(DType::f32, {19, 23});

  linear_activation_forward(ctx, x.view(), weight.view(), bias.view(), Activation::gelu, pre.view(),
                            y.view());
  linear_forward(ctx, x.view(), weight.view(), bias.view(), expected_pre.view());
  activation_forward(ctx, Activation::gelu, expected_pre.view(), expected_y.view());

  EXPECT_TRUE(same_bits(pre.view(), expected_pre.view()));
  EXPECT_TRUE(same_bits(y.view(), expected_y.view()));
}

TEST_F(Linear, ActivationGradientMatchesDifferencesAndMayAliasPre) {
  Tensor pre = random_tensor(DType::f64, {6, 5}, 1);
  const Tensor weight = random_tensor(DType::f64, {3, 5}, 2);
  const Tensor dy = random_tensor(DType::f64, {6, 3}, 3);
  Tensor act = poisoned(DType::f64, {6, 5});
  Tensor y = poisoned(DType::f64, {6, 3});
  const auto value = [&] {
    activation_forward(ctx, Activation::gelu_tanh, pre.view(), act.view());
    linear_forward(ctx, act.view(), weight.view(), {}, y.view());
    return inner_product(dy.view(), y.view());
  };
  Tensor dpre = poisoned(DType::f64, {6, 5});

  linear_activation_backward_input(ctx, dy.view(), weight.view(), pre.view(), Activation::gelu_tanh,
                                   {dpre.view()});

  expect_gradient("dpre", pre.view(), dpre.view(), value);
  linear_activation_backward_input(ctx, dy.view(), weight.view(), pre.view(), Activation::gelu_tanh,
                                   {pre.view()});
  EXPECT_TRUE(same_bits(pre.view(), dpre.view()));
}

TEST_F(Linear, ActivationGradientAddsUpTheBiasOfPre) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor pre = random_tensor(dtype, {1031, 3}, 1);
    const Tensor weight = random_tensor(dtype, {2, 3}, 2);
    const Tensor dy = random_tensor(dtype, {1031, 2}, 3);
    Tensor dpre = poisoned(dtype, {1031, 3});
    Tensor dbias = poisoned(dtype, {3});
    Tensor expected = poisoned(dtype, {3});
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      linear_activation_backward_input(ctx, dy.view(), weight.view(), pre.view(),
                                       Activation::relu_squared,
                                       {dpre.view(), dbias.view(), accumulate});
      linear_backward_weight(ctx, dpre.view(), {}, accumulate, {}, expected.view());
      EXPECT_TRUE(same_bits(dbias.view(), expected.view())) << name_of(dtype);
    }
  }
}

TEST_F(Linear, ActivationGradientWorksInBlocksOfRows) {
  const Tensor pre = random_tensor(DType::f64, {1031, 3}, 1);
  const Tensor weight = random_tensor(DType::f64, {2, 3}, 2);
  const Tensor dy = random_tensor(DType::f64, {1031, 2}, 3);
  Tensor through = poisoned(DType::f64, {1031, 3});
  Tensor expected = poisoned(DType::f64, {1031, 3});
  Tensor dpre = poisoned(DType::f64, {1031, 3});
  linear_backward_input(ctx, dy.view(), weight.view(), Accumulate::no, through.view());
  activation_backward(ctx, Activation::silu, pre.view(), through.view(), expected.view());

  linear_activation_backward_input(ctx, dy.view(), weight.view(), pre.view(), Activation::silu,
                                   {dpre.view()});

  expect_close(dpre.view(), expected.view(), "dpre");
}

TEST_F(Linear, WrongOperandsAreNamed) {
  const Tensor x = filled_tensor(DType::f32, {2, 3}, 0);
  const Tensor weight = filled_tensor(DType::f32, {4, 3}, 0);
  Tensor bias = filled_tensor(DType::f32, {5}, 0);
  Tensor y = filled_tensor(DType::f32, {2, 4}, 0);
  Tensor dx = filled_tensor(DType::f32, {2, 3}, 0);
  Tensor dweight = filled_tensor(DType::f32, {4, 3}, 0);
  expect_error_naming("linear_forward bias",
                      [&] { linear_forward(ctx, x.view(), weight.view(), bias.view(), y.view()); });
  expect_error_naming("linear_forward x",
                      [&] { linear_forward(ctx, y.view(), weight.view(), {}, y.view()); });
  expect_error_naming("linear_forward weight",
                      [&] { linear_forward(ctx, x.view(), {}, {}, y.view()); });
  expect_error_naming("linear_backward_input dx", [&] {
    linear_backward_input(ctx, y.view(), weight.view(), Accumulate::no, y.view());
  });
  expect_error_naming("linear_activation_backward_input dbias", [&] {
    linear_activation_backward_input(ctx, y.view(), weight.view(), x.view(), Activation::relu,
                                     {dx.view(), bias.view()});
  });
  expect_error_naming("linear_backward_weight x", [&] {
    linear_backward_weight(ctx, y.view(), y.view(), Accumulate::no, dweight.view(), {});
  });
  expect_error_naming("gated", [&] {
    linear_activation_forward(ctx, x.view(), weight.view(), {}, Activation::swiglu, y.view(),
                              y.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
