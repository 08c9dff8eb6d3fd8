// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Meta : public testing::Test {
 protected:
  Context ctx{Device::meta};
  /// A view without memory: an op that touches it does not survive.
  static View view(const Shape& shape, DType dtype = DType::f32) {
    return {nullptr, dtype, Device::meta, shape};
  }
  /// The work that `op` adds to the ledger under `name`.
  Work work(const std::string& name, const std::function<void()>& op) {
    ctx.ledger().clear();
    op();
    EXPECT_EQ(ctx.ledger().rows().size(), 1U) << name;
    EXPECT_EQ(ctx.ledger().rows().begin()->first.second, name);
    return ctx.ledger().total();
  }
};

constexpr Dim B = 2, T = 8, C = 12, F = 20, V = 30, H = 3;
constexpr double kRows = B * T;

TEST_F(Meta, ProductsCountTwoMnk) {
  const View x = view({B, T, C});
  const View weight = view({F, C});
  const View y = view({B, T, F});
  const double gemm = 2.0 * kRows * C * F;
  const double bytes = 4.0 * (kRows * C + F * C + kRows * F);

  const Work forward = work("linear_forward", [&] { linear_forward(ctx, x, weight, {}, y); });
  EXPECT_EQ(forward.flops, gemm);
  EXPECT_EQ(forward.bytes, bytes);
  EXPECT_EQ(forward.calls, 1);
  EXPECT_EQ(work("linear_backward_input",
                 [&] { linear_backward_input(ctx, y, weight, Accumulate::no, x); })
                .flops,
            gemm);
  EXPECT_EQ(work("linear_backward_weight",
                 [&] { linear_backward_weight(ctx, y, x, Accumulate::no, weight, {}); })
                .flops,
            gemm);
  EXPECT_EQ(work("matmul",
                 [&] {
                   matmul(ctx, view({5, 7}), Trans::yes, view({11, 5}), Trans::yes, Accumulate::no,
                          view({7, 11}));
                 })
                .flops,
            2.0 * 5 * 7 * 11);
  EXPECT_GT(work("linear_activation_forward",
                 [&] { linear_activation_forward(ctx, x, weight, {}, Activation::gelu, y, y); })
                .flops,
            gemm);
}

TEST_F(Meta, TheLedgerNamesThePathOfAnActivation) {
  Arena arena("activations");
  Arena scratch("scratch");
  const auto take = [](Arena& from, const Shape& shape) {
    return from.take(DType::bf16, shape, "operand");
  };
  const View x = take(arena, {12, 8});
  const View weight = take(arena, {16, 8});
  const View pre = take(arena, {12, 16});
  const View y = take(arena, {12, 16});
  const View same_offset = [&] {
    take(scratch, {12, 8}), take(scratch, {16, 8});
    return take(scratch, {12, 16});
  }();
  const auto paths = [&](Device planned, bool deterministic, Activation activation, View dpre) {
    Context context(Device::meta, 0, planned);
    context.set_deterministic(deterministic);
    linear_activation_forward(context, x, weight, {}, activation, pre, y);
    linear_activation_backward_input(context, x, weight.reshaped({8, 16}), pre, activation, {dpre});
    const auto path = [&](const char* op) {
      return *context.ledger().find("other", op)->paths.begin();
    };
    return path("linear_activation_forward") + " " + path("linear_activation_backward_input");
  };

  EXPECT_EQ(paths(Device::cuda, false, Activation::gelu_tanh, y), "fused fused");
  EXPECT_EQ(paths(Device::cuda, false, Activation::gelu_tanh, same_offset), "fused fused");
  EXPECT_EQ(paths(Device::cuda, true, Activation::gelu_tanh, y), "separate fused");
  EXPECT_EQ(paths(Device::cuda, false, Activation::gelu_tanh, pre), "fused separate");
  EXPECT_EQ(paths(Device::cuda, false, Activation::gelu, y), "separate separate");
  EXPECT_EQ(paths(Device::meta, false, Activation::gelu_tanh, y), "separate separate");
}

TEST_F(Meta, AttentionCountsTheCausalHalfOrTheSquare) {
  const HeadLayout layout = {H, 1, 4};
  const View qkv = view({B, T, layout.packed_width()});
  const View out = view({B, T, C});
  const View statistics = view({B, H, T});
  const View square = view({B, H, T, T});
  const double half = 2.0 * B * T * T * C;

  EXPECT_EQ(work("attention_forward",
                 [&] { attention_forward(ctx, layout, AttentionMask(), qkv, out, statistics); })
                .flops,
            half);
  EXPECT_EQ(
      work("attention_backward",
           [&] {
             attention_backward(ctx, layout, AttentionMask(), out, {qkv, out, statistics}, {qkv});
           })
          .flops,
      2.5 * half);
  EXPECT_EQ(
      work("attention_reference_forward",
           [&] { attention_reference_forward(ctx, layout, AttentionMask(), qkv, {}, out, square); })
          .flops,
      2 * half);
  EXPECT_EQ(work("attention_reference_backward",
                 [&] {
                   attention_reference_backward(ctx, layout, AttentionMask(), out, {qkv, square},
                                                square, qkv);
                 })
                .flops,
            4 * half);
  const View cache = view({B, 20, 4});
  EXPECT_EQ(work("attention_cached_forward",
                 [&] {
                   attention_cached_forward(ctx, layout, AttentionMask(), {},
                                            view({B, 1, layout.packed_width()}), {cache, cache, 10},
                                            view({B, 1, C}));
                 })
                .flops,
            4.0 * B * C * 11);
  const View pages = view({5, 16, 4});
  EXPECT_EQ(work("attention_cached_forward",
                 [&] {
                   attention_cached_forward(
                       ctx, layout, AttentionMask(), {}, view({B, 1, layout.packed_width()}),
                       {pages, pages, 10, view({B, 2}, DType::i32)}, view({B, 1, C}));
                 })
                .flops,
            4.0 * B * C * 11);
}

TEST_F(Meta, AttentionWithoutAMaskCountsTheSquare) {
  const AttentionMask none = {AttentionMask::Kind::none};
  const HeadLayout layout = {H, 1, 4};
  const View qkv = view({B, T, layout.packed_width()});
  const View out = view({B, T, C});
  const View statistics = view({B, H, T});
  const View square = view({B, H, T, T});
  const double gemm = 2.0 * B * T * T * C;

  EXPECT_EQ(
      work("attention_forward", [&] { attention_forward(ctx, layout, none, qkv, out, statistics); })
          .flops,
      2 * gemm);
  EXPECT_EQ(work("attention_backward",
                 [&] {
                   attention_backward(ctx, layout, none, out, {qkv, out, statistics}, {qkv});
                 })
                .flops,
            5 * gemm);
  EXPECT_EQ(work("attention_reference_forward",
                 [&] { attention_reference_forward(ctx, layout, none, qkv, {}, out, square); })
                .flops,
            2 * gemm);
}

TEST_F(Meta, ElementwiseOpsCountEveryOperandOnce) {
  const View x = view({B, T, C});
  const View row = view({C});
  const View rstd = view({B, T});
  const double full = 4.0 * kRows * C;

  EXPECT_EQ(work("add", [&] { add(ctx, x, x, x); }).bytes, 3 * full);
  EXPECT_EQ(work("fill", [&] { fill(ctx, 0, x); }).bytes, full);
  EXPECT_EQ(work("cast", [&] { cast(ctx, x, view({B, T, C}, DType::bf16)); }).bytes, 1.5 * full);
  EXPECT_EQ(
      work("activation_forward", [&] { activation_forward(ctx, Activation::gelu, x, x); }).bytes,
      2 * full);
  EXPECT_EQ(work("gated_backward",
                 [&] {
                   gated_backward(ctx, Activation::swiglu, x, view({B, T, C / 2}), x);
                 })
                .bytes,
            2.5 * full);
  EXPECT_EQ(work("add_norm_forward",
                 [&] {
                   add_norm_forward(ctx, NormKind::rmsnorm,
                                    {.residual = x, .delta = x, .weight = row},
                                    {.sum = x, .y = x, .rstd = rstd});
                 })
                .bytes,
            4 * full + 4.0 * (C + kRows));
}

TEST_F(Meta, LookupsLossAndOptimizerCountWhatTheyTouch) {
  const View sums = view({kSumCount});
  EXPECT_EQ(work("embedding_forward",
                 [&] {
                   embedding_forward(ctx, view({B, T}, DType::i32),
                                     {.table = view({V, C}), .shard = whole_vocabulary(V)}, 1,
                                     view({B, T, C}));
                 })
                .bytes,
            4.0 * (2 * kRows * C + kRows));
  EXPECT_EQ(work("softmax_cross_entropy",
                 [&] {
                   softmax_cross_entropy(
                       ctx, {view({16, V}), whole_vocabulary(V), view({16}, DType::i32)}, nullptr,
                       WithGradient::yes, sums);
                 })
                .bytes,
            4.0 * (16 * V + 16 + kSumCount));
  const View flat = view({100});
  const View decay = view({4});
  EXPECT_EQ(
      work("adamw",
           [&] {
             adamw(ctx, {}, nullptr, {flat, flat, view({100}, DType::bf16), decay}, flat, flat);
           })
          .bytes,
      100 * (7 * 4.0 + 2) + 4 * 4.0);
  begin_step(ctx, {}, nullptr, sums);
  finalize_step(ctx, {}, sums, nullptr, nullptr);
}

TEST_F(Meta, APartOfTheVocabularyCountsItsOwn) {
  const VocabularyShard shard = {10, 7, V};
  const View tokens = view({B, T}, DType::i32);
  const View targets = view({16}, DType::i32);
  const View logits = view({16, 8});
  const View gathered = view({4, 16, kRowStatisticCount});
  const double table_rows = 7.0 * C;  // fewer than the tokens
  const auto backward_bytes = [&](Accumulate accumulate) {
    return work("embedding_backward",
                [&] {
                  embedding_backward(ctx, {tokens, view({B * T}, DType::i32)}, view({B, T, C}),
                                     shard, 1, accumulate, view({8, C}));
                })
        .bytes;
  };
  const auto loss = [&](WithGradient gradient) {
    return work("vocabulary_cross_entropy", [&] {
      vocabulary_cross_entropy(ctx, {logits, shard, targets}, gathered, nullptr, gradient,
                               view({kSumCount}));
    });
  };

  EXPECT_EQ(work("embedding_forward",
                 [&] {
                   embedding_forward(ctx, tokens, {.table = view({8, C}), .shard = shard}, 1,
                                     view({B, T, C}));
                 })
                .bytes,
            4.0 * (kRows * C + table_rows + kRows));
  EXPECT_EQ(backward_bytes(Accumulate::yes), 4.0 * (kRows * C + table_rows + 2 * kRows));
  EXPECT_EQ(backward_bytes(Accumulate::no), 4.0 * (kRows * C + 8 * C + 2 * kRows));
  const Work statistics = work("softmax_statistics", [&] {
    softmax_statistics(ctx, {logits, shard, targets}, view({16, kRowStatisticCount}));
  });
  EXPECT_EQ(statistics.bytes, 4.0 * (16 * 8 + 16 + 16 * 4));
  EXPECT_EQ(statistics.flops, 10.0 * 16 * 7);
  const double read = 4.0 * (16 + 4 * 16 * 4 + kSumCount);
  EXPECT_EQ(loss(WithGradient::no).bytes, read) << "the logits are not touched";
  EXPECT_EQ(loss(WithGradient::yes).bytes, read + 4.0 * 16 * 8);
  EXPECT_GT(ctx.workspace_high_water(), 0U);
}

TEST_F(Meta, ThePlannedWorkspaceIsWhatTheCpuNeeds) {
  const HeadLayout layout = {4, 2, 33};
  const Dim tokens = 97;
  std::array<std::int32_t, 7> page_numbers = {0, 1, 2, 3, 4, 5, 6};
  const auto run = [&](Context& context, auto&& make) {
    attention_forward(context, layout, AttentionMask(), make({2, tokens, layout.packed_width()}),
                      make({2, tokens, 132}), make({2, 4, tokens}));
    attention_backward(
        context, layout, AttentionMask(), make({2, tokens, 132}),
        {make({2, tokens, layout.packed_width()}), make({2, tokens, 132}), make({2, 4, tokens})},
        {make({2, tokens, layout.packed_width()})});
    attention_reference_forward(context, layout, AttentionMask(),
                                make({2, tokens, layout.packed_width()}), {},
                                make({2, tokens, 132}), make({2, 4, tokens, tokens}));
    const View pages = View(page_numbers.data(), DType::i32, context.device(), {1, 7});
    attention_cached_forward(context, layout, AttentionMask(), {},
                             make({1, 97, layout.packed_width()}),
                             {make({7, 16, 66}), make({7, 16, 66}), 0, pages}, make({1, 97, 132}));
    norm_backward(context, NormKind::rmsnorm, make({9, C}),
                  {.sum = make({9, C}), .weight = make({C}), .rstd = make({9})},
                  {.dsum = make({9, C}), .dweight = make({C})});
    add_norm_squared(context, make({200000}), make({kSumCount}));
    linear_activation_backward_input(context, make({9, F}), make({F, C}), make({9, C}),
                                     Activation::gelu, {make({9, C}), make({C})});
  };
  run(ctx, [](const Shape& shape) { return view(shape); });
  ASSERT_GT(ctx.workspace_high_water(), 0U);

  Context cpu(Device::cpu, ctx.workspace_high_water());
  std::vector<Tensor> tensors;
  run(cpu, [&](const Shape& shape) {
    tensors.push_back(filled_tensor(DType::f32, shape, 0.5));
    return tensors.back().view();
  });

  EXPECT_EQ(cpu.workspace_high_water(), ctx.workspace_high_water());
}

TEST_F(Meta, ShapesAreCheckedAndDevicesMustAgree) {
  expect_error_naming("add b", [&] { add(ctx, view({2}), view({3}), view({2})); });
  const Tensor here = filled_tensor(DType::f32, {2}, 0);
  expect_error_naming("add b: is on cpu, the context on meta",
                      [&] { add(ctx, view({2}), here.view(), view({2})); });
}

}  // namespace
}  // namespace hyperslab::ops
