// SPDX-License-Identifier: Apache-2.0
// Partial sums of gradients that wait for one kernel (ops::with_deferred_reductions): the bits of
// the same ops one by one.
#include "hyperslab/ops/deferred_reductions.hpp"

#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/norm.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class DeferredReductions : public DevicesTest {
 protected:
  static void expect_same(const Problem& problem, const Problem::Call& call,
                          const std::string& what) {
    expect_same_bits(problem, call, what);
    problem.expect_match(deferred(call), what, 4);
  }
  static void expect_same_bits(const Problem& problem, const Problem::Call& call,
                               const std::string& what) {
    for (const Device device : problem.devices()) {
      const auto one_by_one = problem.on(device, call);
      const auto late = problem.on(device, deferred(call));
      for (std::size_t i = 0; i < late.size(); ++i) {
        EXPECT_TRUE(same_bits(late[i].view(), one_by_one[i].view()))
            << what << " on " << name_of(device) << ", operand " << i;
      }
    }
  }

 private:
  static Problem::Call deferred(const Problem::Call& call) {
    return
        [=](Context& ctx, const Views& v) { with_deferred_reductions(ctx, [&] { call(ctx, v); }); };
  }
};

/// Of a product through an activation, of a layer's bias and of a norm, as a block has them; more
/// than one kernel takes.
TEST_F(DeferredReductions, OfManyOps) {
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    constexpr int kLayers = 4;
    Problem problem(DType::bf16);
    problem.input(random_tensor(DType::bf16, {300, 192}, 1))
        .input(random_tensor(DType::bf16, {192, 256}, 2, 0.1))
        .input(random_tensor(DType::bf16, {300, 256}, 3))
        .input(filled_tensor(DType::f32, {300}, 1.3))
        .input(random_tensor(DType::bf16, {192}, 4));
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      problem.output(DType::bf16, {300, 256})
          .output(DType::bf16, {300, 192})
          .in_out(random_tensor(DType::f32, {256}, 10 + layer), 1.0)
          .in_out(random_tensor(DType::f32, {192}, 20 + layer), 1.0)
          .in_out(random_tensor(DType::f32, {192}, 30 + layer), 1.0);
    }
    expect_same(
        problem,
        [=](Context& ctx, const Views& v) {
          for (std::size_t layer = 0; layer < kLayers; ++layer) {
            const View* out = &v[5 + 5 * layer];
            linear_activation_backward_input(ctx, v[0], v[1], v[2], Activation::gelu_tanh,
                                             {out[0], out[2], accumulate});
            linear_backward_weight(ctx, v[0], {}, accumulate, {}, out[3]);
            norm_backward(ctx, NormKind::rmsnorm, v[0], {.sum = v[0], .weight = v[4], .rstd = v[3]},
                          {.dsum = out[1], .dweight = out[4], .accumulate_weight = accumulate});
          }
        },
        "sums of many ops");
  }
}

/// Ops take scratch memory while the sums of others wait.
TEST_F(DeferredReductions, LieBesideScratchMemory) {
  const HeadLayout layout = {4, 4, 64};
  constexpr Dim kPacked = Dim{3} * 256;
  Problem problem(DType::bf16);
  problem.input(random_tensor(DType::bf16, {3, 101, kPacked}, 1))
      .input(random_tensor(DType::bf16, {3, 101, 256}, 2))
      .input(random_tensor(DType::bf16, {256}, 3))
      .input(filled_tensor(DType::f32, {3, 101}, 1.3))
      .output(DType::bf16, {3, 101, 256})
      .output(DType::f32, {3, 4, 101})
      .output(DType::bf16, {3, 101, kPacked})
      .in_out(random_tensor(DType::bf16, {3, 101, 256}, 4))
      .output(DType::f32, {kPacked});
  for (int i = 0; i < 4; ++i) problem.output(DType::f32, {256});
  problem.output(DType::f32, {256}).output(DType::bf16, {3, 101, 256});
  const auto call = [=](Context& ctx, const Views& v) {
    norm_backward(ctx, NormKind::layernorm, v[1],
                  {.sum = v[1], .weight = v[2], .mean = v[3], .rstd = v[3]},
                  {.dsum = v[7],
                   .accumulate_input = Accumulate::yes,
                   .dweight = v[9],
                   .dbias = v[10],
                   .arriving_sums = v[11],
                   .leaving_sums = v[12]});
    attention_forward(ctx, layout, {}, v[0], v[4], v[5]);
    attention_backward(ctx, layout, {}, v[1], {v[0], v[4], v[5]}, {v[6], v[8]});
    norm_backward(ctx, NormKind::rmsnorm, v[1], {.sum = v[1], .weight = v[2], .rstd = v[3]},
                  {.dsum = v[14], .dweight = v[13]});
  };
  expect_same_bits(problem, call, "sums beside scratch memory");
}

/// Each addition sees the one before.
TEST_F(DeferredReductions, OfOneGradientStayInOrder) {
  Problem problem(DType::bf16);
  problem.input(random_tensor(DType::bf16, {1000, 96}, 1))
      .input(random_tensor(DType::bf16, {70, 96}, 2))
      .output(DType::f32, {96});
  expect_same(
      problem,
      [](Context& ctx, const Views& v) {
        linear_backward_weight(ctx, v[0], {}, Accumulate::no, {}, v[2]);
        linear_backward_weight(ctx, v[1], {}, Accumulate::yes, {}, v[2]);
        linear_backward_weight(ctx, v[0], {}, Accumulate::yes, {}, v[2]);
      },
      "sums of one gradient");
}

}  // namespace
}  // namespace hyperslab::ops
