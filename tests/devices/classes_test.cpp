// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/classes.hpp"

#include "hyperslab/ops/dropout.hpp"
#include "ops/classes_case.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using ops::test::class_labels;
using ops::test::class_weights;

class Classes : public DevicesTest {
 protected:
  StepState state;
  void SetUp() override {
    DevicesTest::SetUp();
    state.gradient_scale = 0.25F;
    state.input.step = 9;
  }
};

double sum_of(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

TEST_F(Classes, LossMatchesTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const auto& [B, classes, padding] : std::vector<std::array<Dim, 3>>{
             {1, 2, 0}, {7, 10, 118}, {66, 200, 56}, {5, 1000, 24}, {3, 21843, 45}}) {
      Problem p(dtype);
      p.in_out(random_tensor(dtype, {B, classes + padding}, 1, 3.0))
          .fixed(class_labels(B, classes))
          .fixed(class_weights(B))
          .fixed(bytes_of(state))
          .in_out(filled_tensor(DType::f32, {kSumCount}, 1));
      const Dim count = classes;
      const auto call = [=](Context& ctx, const Views& v) {
        class_cross_entropy(ctx, {v[0], count, v[1], v[2]}, 0.1, struct_at<StepState>(v[3]),
                            WithGradient::yes, v[4]);
      };
      p.expect_match(call, "class loss of " + std::to_string(classes), 2);
      const auto oracle = p.on_oracle(call);
      p.on_each(call, [&](const Results& found) {
        for (const SumIndex index : {kSumTokens, kSumCorrect, kSumCorrect5, kSumStop}) {
          EXPECT_EQ(sum_of(found[4], index), sum_of(oracle[4], index)) << index;
        }
      });
    }
  }
}

TEST_F(Classes, TokensAndPoolingMatchTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const auto& [B, N, C] : std::vector<std::array<Dim, 3>>{
             {1, 1, 4}, {3, 4, 12}, {5, 64, 192}, {2, 196, 384}, {2, 9, 13}}) {
      for (const Dim first : {Dim{0}, Dim{1}}) {
        const Dim T = N + first;
        const std::string name = std::to_string(N) + " tokens of " + std::to_string(C);
        Problem tokens(dtype);
        tokens.input(random_tensor(dtype, {B, N, C}, 1))
            .input(random_tensor(dtype, {C}, 2))
            .input(random_tensor(dtype, {T, C}, 3))
            .output(dtype, {B, T, C})
            .input(random_tensor(dtype, {B, T, C}, 1))
            .output(dtype, {B, N, C})
            .in_out(random_tensor(DType::f32, {C}, 2))
            .in_out(random_tensor(DType::f32, {T, C}, 3));
        tokens.expect_match(
            [=](Context& ctx, const Views& v) {
              patch_tokens_forward(ctx, v[0], first == 1 ? CView(v[1]) : CView(), v[2], v[3]);
              patch_tokens_backward(ctx, v[4], Accumulate::yes, v[5], first == 1 ? v[6] : View(),
                                    v[7]);
            },
            name);
        for (const bool token : {true, false}) {
          Problem pool(dtype);
          pool.input(random_tensor(dtype, {B, T, C}, 1))
              .input(random_tensor(dtype, {B, T, C}, 2))
              .output(DType::f32, {B, C})
              .input(random_tensor(dtype, {B, C}, 1))
              .output(dtype, {B, T, C});
          const PooledRows rows = {B, T, 0, token};
          pool.expect_match(
              [=](Context& ctx, const Views& v) {
                pool_rows_forward(ctx, rows, v[0], v[1], v[2]);
                pool_rows_backward(ctx, rows, v[3], v[4]);
              },
              name + " pooled");
        }
      }
    }
  }
}

TEST_F(Classes, SinusoidsAndDropPathMatchTheOracle) {
  for (const DType dtype : compute_types()) {
    Problem table(dtype);
    table.output(dtype, {50, 24});
    table.expect_match([](Context& ctx, const Views& v) { sincos2d_table(ctx, 7, v[0]); },
                       "sincos2d");
    const Dim B = 33;
    std::vector<std::int64_t> places;
    for (Dim b = 0; b < B; ++b) places.push_back(3 * b + 1);
    Tensor positions(Device::cpu, DType::i64, {B});
    std::ranges::copy(places, positions.view().data<std::int64_t>());
    Problem path(dtype);
    path.input(random_tensor(dtype, {B, 5, 16}, 1))
        .fixed(std::move(positions))
        .fixed(bytes_of(state))
        .output(dtype, {B, 5, 16});
    path.expect_match(
        [](Context& ctx, const Views& v) {
          drop_path(ctx, {0.4F, 11, 6, v[1], struct_at<StepState>(v[2])}, v[0], v[3]);
        },
        "drop path");
  }
}

}  // namespace
}  // namespace hyperslab::ops
