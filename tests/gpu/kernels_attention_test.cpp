// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_test.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr AttentionMask kNoMask = {AttentionMask::Kind::none};

class GpuAttentionKernels : public GpuTest {};

TEST_F(GpuAttentionKernels, CachedForward) {
  struct Case {
    Dim B, new_tokens, past;
    HeadLayout layout;
    AttentionMask mask{};
    double softcap = 0;
  };
  for (const DType dtype : kGpuTypes) {
    for (const auto& [B, tokens, past, layout, mask, softcap] :
         std::vector<Case>{{1, 1, 0, {1, 1, 1}},
                           {2, 1, 6, {4, 2, 64}},
                           {2, 5, 40, {6, 2, 17}},
                           {1, 33, 0, {2, 1, 40}},
                           {1, 2, 1000, {3, 3, 80}},
                           {1, 1, 9, {2, 2, 300}},
                           {1, 1, 300, {4, 2, 128}},
                           {2, 1, 3000, {8, 2, 64}},
                           {1, 3, 700, {2, 1, 256}},
                           {1, 1, 63, {2, 2, 32}},
                           {2, 1, 3000, {8, 2, 64}, {AttentionMask::Kind::causal, 700}},
                           {2, 5, 40, {6, 2, 17}, {AttentionMask::Kind::causal, 3}, 0.8},
                           {1, 3, 700, {2, 1, 256}, {}, 2.0}}) {
      const Dim rows = past + tokens + 3;
      const Shape cache = {B, rows, layout.kv_heads * layout.head_width};
      Problem problem(dtype);
      problem.input(random_tensor(dtype, {B, tokens, layout.packed_width()}, 1))
          .in_out(random_tensor(dtype, cache, 2))
          .in_out(random_tensor(dtype, cache, 3))
          .output(dtype, {B, tokens, layout.heads * layout.head_width});
      problem.expect_match(
          [=, layout = layout, past = past, mask = mask, softcap = softcap](
              Context& ctx, const Problem::Views& v) {
            AttentionScores scores(mask);
            scores.softcap = softcap;
            attention_cached_forward(ctx, layout, scores, {}, v[0], {v[1], v[2], past}, v[3]);
          },
          "attention_cached_forward");
    }
  }
}

/// A graph replays with the position that lies on the GPU; the one of the call is another.
TEST_F(GpuAttentionKernels, PositionsAreReadOnTheGpu) {
  const HeadLayout layout = {4, 2, 64};
  const Dim past = 77;
  for (const DType dtype : kGpuTypes) {
    Problem problem(dtype);
    problem.in_out(random_tensor(dtype, {2, 1, layout.packed_width()}, 1))
        .in_out(random_tensor(dtype, {2, 200, 128}, 2))
        .in_out(random_tensor(dtype, {2, 200, 128}, 3))
        .output(dtype, {2, 1, 256})
        .fixed(int_tensor({1}, {static_cast<std::int32_t>(past)}))
        .output(DType::f32, {200, 32})
        .output(DType::f32, {200, 32})
        .fixed(int_tensor({2, 1}, {3, 5}))
        .input(random_tensor(dtype, {8, 16}, 4))
        .input(random_tensor(dtype, {200, 16}, 5))
        .output(dtype, {2, 1, 16});
    const auto call = [=](Context& ctx, const Problem::Views& v) {
      const TokenPosition here =
          ctx.device() == Device::cuda ? TokenPosition(9, v[4]) : TokenPosition(past);
      rope_table(ctx, rope_frequencies(1e4, 32), 1, v[5], v[6]);
      rope(ctx, layout, v[5], v[6], here, Rotation::forward, v[0]);
      attention_cached_forward(ctx, layout, {}, {}, v[0], {v[1], v[2], here}, v[3]);
      embedding_forward(ctx, v[7], {v[8], {0, 8, 8}, v[9], here}, 1.0F, v[10]);
    };
    problem.expect_match(call, "one token after those of a position on the GPU");
  }
}

/// The kernels of Hopper's backward pass run beside each other; more blocks than fit at once, and
/// other kernels in between.
TEST_F(GpuAttentionKernels, BackwardHasTheSameBitsInEveryRun) {
  const HeadLayout layout = {12, 12, 64};
  const Shape packed = {8, 1024, layout.packed_width()};
  const Shape wide = {8, 1024, Dim{12} * 64};
  const Tensor sources[] = {random_tensor(DType::bf16, packed, 1),
                            random_tensor(DType::bf16, wide, 2)};
  Context meta(Device::meta, 0, Device::cuda);
  const auto backward = [&](Context& ctx, std::vector<Tensor>& at) {
    attention_backward(ctx, layout, {}, at[1].view(), {at[0].view(), at[2].view(), at[3].view()},
                       {at[4].view(), at[5].view()});
  };
  const auto operands = [&](Device device) {
    std::vector<Tensor> at;
    at.emplace_back(device, DType::bf16, packed);
    at.emplace_back(device, DType::bf16, wide);
    at.emplace_back(device, DType::bf16, wide);
    at.emplace_back(device, DType::f32, Shape{8, 12, 1024});
    at.emplace_back(device, DType::bf16, packed);
    at.emplace_back(device, DType::f32, Shape{layout.packed_width()});
    return at;
  };
  std::vector<Tensor> planned = operands(Device::meta);
  backward(meta, planned);
  Context ctx(Device::cuda, meta.workspace_high_water());
  std::vector<Tensor> at = operands(Device::cuda);
  for (const std::size_t i : {0, 1}) copy(ctx, sources[i].view(), at[i].view());
  attention_forward(ctx, layout, {}, at[0].view(), at[2].view(), at[3].view());
  Tensor first;
  for (int run = 0; run < 60; ++run) {
    fill(ctx, 0, at[4].view());
    backward(ctx, at);
    Tensor found(Device::cpu, DType::bf16, packed);
    copy(ctx, at[4].view(), found.view());
    synchronize(ctx);
    if (run == 0) {
      first = std::move(found);
      continue;
    }
    ASSERT_TRUE(same_bits(found.view(), first.view())) << "run " << run;
  }
}

}  // namespace
}  // namespace hyperslab::ops
