// SPDX-License-Identifier: Apache-2.0
// A cache in pages on a GPU, whose samples differ in length, against the CPU's.
#include <algorithm>

#include "gpu/gpu_test.hpp"
#include "hyperslab/ops/attention.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class GpuAttentionPaged : public GpuTest {};

struct Case {
  std::vector<Dim> past;  ///< of every sample
  HeadLayout layout;
  Dim tokens = 1;  ///< new ones of each
  Dim half = 0;    ///< 0: no rope
  Dim window = 0;
  double softcap = 0;
  bool sinks = false;
  Dim page = 64;
  Dim spare = 1;  ///< pages of the table beyond the longest sample, which decide on splits
};

/// Every page once, in an order that is none; the samples' tables one after the other.
Tensor shuffled_pages(Dim samples, Dim most) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(samples * most));
  const std::size_t count = pages.size();
  const std::size_t stride = count % 7 == 0 ? 11 : 7;
  for (std::size_t i = 0; i < count; ++i) {
    pages[i] = static_cast<std::int32_t>((i * stride + 3) % count);
  }
  return int_tensor({samples, most}, pages);
}

void expect_as_on_cpu(DType dtype, const Case& of) {
  const auto B = static_cast<Dim>(of.past.size());
  const Dim longest = std::ranges::max(of.past);
  const Dim most = (longest + of.tokens + of.page - 1) / of.page + of.spare;
  const HeadLayout& layout = of.layout;
  const Shape cache = {B * most, of.page, layout.kv_heads * layout.head_width};
  const Shape angles = {most * of.page, std::max<Dim>(1, of.half)};
  Problem problem(dtype);
  problem.input(random_tensor(dtype, {B, of.tokens, layout.packed_width()}, 1))
      .in_out(random_tensor(dtype, cache, 2))
      .in_out(random_tensor(dtype, cache, 3))
      .output(dtype, {B, of.tokens, layout.heads * layout.head_width})
      .fixed(int_tensor({B}, {of.past.begin(), of.past.end()}))
      .fixed(shuffled_pages(B, most))
      .input(random_tensor(dtype, {layout.heads}, 4))
      .input(Tensor(Device::cpu, DType::f32, angles))
      .input(Tensor(Device::cpu, DType::f32, angles));
  problem.expect_match(
      [&](Context& ctx, const Problem::Views& v) {
        RotaryTables tables;
        if (of.half > 0) {
          rope_table(ctx, rope_frequencies(1e4, of.half), 1, v[7], v[8]);
          tables = {v[7], v[8]};
        }
        AttentionScores scores(AttentionMask{AttentionMask::Kind::causal, of.window});
        scores.softcap = of.softcap;
        if (of.sinks) scores.sinks.logits = v[6];
        attention_cached_forward(ctx, layout, scores, tables, v[0],
                                 {v[1], v[2], {longest, v[4]}, v[5]}, v[3]);
      },
      "attention_cached_forward of " + std::to_string(B) + " samples up to " +
          std::to_string(longest) + ", heads " + std::to_string(layout.heads) + " to " +
          std::to_string(layout.kv_heads) + " of " + std::to_string(layout.head_width));
}

TEST_F(GpuAttentionPaged, LengthsThatDiffer) {
  const std::vector<Dim> lengths = {0, 62, 63, 64, 65, 300, 1, 127};
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout : std::vector<HeadLayout>{{4, 4, 64},
                                                            {8, 2, 64},
                                                            {16, 2, 64},
                                                            {4, 4, 128},
                                                            {8, 2, 128},
                                                            {16, 2, 128},
                                                            {6, 2, 128},
                                                            {32, 2, 64},
                                                            {2, 2, 32},
                                                            {4, 1, 256}}) {
      expect_as_on_cpu(dtype, {.past = lengths, .layout = layout, .half = layout.head_width / 2});
    }
  }
}

TEST_F(GpuAttentionPaged, OtherScores) {
  const std::vector<Dim> lengths = {0, 63, 64, 200};
  for (const DType dtype : kGpuTypes) {
    for (const Case& of : std::vector<Case>{
             {.past = lengths, .layout = {8, 2, 64}, .half = 16, .window = 17},
             {.past = lengths, .layout = {8, 2, 64}, .window = 64, .sinks = true},
             {.past = lengths, .layout = {8, 8, 128}, .softcap = 0.8},
             {.past = lengths, .layout = {3, 3, 80}, .half = 40, .sinks = true},
             {.past = lengths, .layout = {6, 3, 17}, .half = 5, .window = 30, .softcap = 0.5},
             {.past = lengths, .layout = {8, 2, 64}, .half = 32, .page = 16}}) {
      expect_as_on_cpu(dtype, of);
    }
  }
}

/// One long text, whose keys many blocks share, some of them without any.
TEST_F(GpuAttentionPaged, FewTextsInManyParts) {
  for (const DType dtype : kGpuTypes) {
    for (const Dim spare : {1, 60}) {
      for (const Dim past : {0, 63, 64, 500, 3000}) {
        expect_as_on_cpu(dtype, {.past = {past},
                                 .layout = {8, 2, 128},
                                 .half = 64,
                                 .sinks = past == 500,
                                 .spare = spare});
      }
      expect_as_on_cpu(
          dtype,
          {.past = {700, 5}, .layout = {4, 1, 64}, .half = 32, .window = 100, .spare = spare});
    }
  }
}

TEST_F(GpuAttentionPaged, SeveralNewTokens) {
  for (const DType dtype : kGpuTypes) {
    for (const Dim tokens : {2, 7, 64, 130}) {
      for (const HeadLayout& layout :
           std::vector<HeadLayout>{{4, 4, 64}, {8, 2, 128}, {6, 2, 64}, {3, 3, 80}}) {
        expect_as_on_cpu(dtype, {.past = {0, 40, 129},
                                 .layout = layout,
                                 .tokens = tokens,
                                 .half = layout.head_width / 2,
                                 .window = tokens == 7 ? 20 : 0,
                                 .sinks = tokens == 64});
      }
    }
  }
}

/// What fills up a sample writes nowhere and changes nothing before it.
TEST_F(GpuAttentionPaged, TokensWithoutAPageAreNotKept) {
  const HeadLayout layout = {8, 2, 64};
  const Shape cache = {2, 64, 128};
  for (const Dim tokens : {3, 70}) {  // 3 of them are the sample's
    Problem problem(DType::bf16);
    problem.input(random_tensor(DType::bf16, {1, tokens, layout.packed_width()}, 1))
        .in_out(random_tensor(DType::bf16, cache, 2))
        .in_out(random_tensor(DType::bf16, cache, 3))
        .output(DType::bf16, {1, 3, 512})
        .input(poisoned(DType::bf16, {1, tokens, 512}))
        .fixed(int_tensor({1, 3}, {1, -1, -1}));
    problem.expect_match(
        [=](Context& ctx, const Problem::Views& v) {
          attention_cached_forward(ctx, layout, AttentionMask(), {}, v[0], {v[1], v[2], 30, v[5]},
                                   v[4]);
          const View front(v[4].raw(), v[4].dtype(), v[4].device(), {1, 3, 512});
          copy(ctx, front, v[3]);
        },
        "tokens without a page, " + std::to_string(tokens));
  }
}

}  // namespace
}  // namespace hyperslab::ops
