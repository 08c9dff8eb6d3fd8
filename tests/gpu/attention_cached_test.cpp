// SPDX-License-Identifier: Apache-2.0
// Many new tokens of each sample behind a cache on a GPU, against the CPU's. What of the cache no
// token has written yet holds NaNs.
#include <algorithm>
#include <functional>
#include <limits>

#include "cuda/attention/cached_table.hpp"
#include "gpu/gpu_test.hpp"
#include "hyperslab/ops/attention.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class GpuAttentionCached : public GpuTest {};

struct Case {
  std::vector<Dim> past;  ///< of every sample
  HeadLayout layout;
  Dim tokens = 1;  ///< new ones of each
  Dim window = 0;
  double softcap = 0;
  bool sinks = false;
  Dim page = 64;     ///< 0: a cache without pages
  Dim fillers = 0;   ///< newest tokens that have a page only if one holds tokens before them
  Dim spare = 1;     ///< pages or tokens that no sample uses
  bool rope = true;  ///< of half of each head

  [[nodiscard]] Dim samples() const { return static_cast<Dim>(past.size()); }
  [[nodiscard]] Dim longest() const { return std::ranges::max(past) + tokens; }
  [[nodiscard]] Dim most() const { return (longest() + page - 1) / page + spare; }
  [[nodiscard]] Shape cache() const {
    const Dim width = layout.kv_heads * layout.head_width;
    if (page == 0) return {samples(), longest() + spare, width};
    return {samples() * most(), page, width};
  }
  /// (samples, most), in an order that is none, or -1.
  [[nodiscard]] std::vector<std::int32_t> pages() const {
    std::vector<std::int32_t> out(static_cast<std::size_t>(samples() * most()));
    const std::size_t stride = out.size() % 7 == 0 ? 11 : 7;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Dim b = static_cast<Dim>(i) / most();
      const Dim first = static_cast<Dim>(i) % most() * page;
      const bool is_used = first < past[static_cast<std::size_t>(b)] + tokens - fillers;
      out[i] = is_used ? static_cast<std::int32_t>((i * stride + 3) % out.size()) : -1;
    }
    return out;
  }
  /// The row of the cache that holds a token.
  [[nodiscard]] Dim row_of(Dim sample, Dim token) const {
    if (page == 0) return sample * cache()[1] + token;
    return pages()[static_cast<std::size_t>(sample * most() + token / page)] * page + token % page;
  }
  /// Random where tokens are, elsewhere NaNs.
  [[nodiscard]] Tensor filled_cache(DType dtype, std::uint64_t seed) const {
    const std::vector<double> random = to_doubles(random_tensor(dtype, cache(), seed).view());
    std::vector<double> values(random.size(), std::numeric_limits<double>::quiet_NaN());
    const Dim width = cache()[2];
    for (Dim b = 0; b < samples(); ++b) {
      for (Dim t = 0; t < past[static_cast<std::size_t>(b)]; ++t) {
        const Dim first = row_of(b, t) * width;
        std::copy_n(random.begin() + first, width, values.begin() + first);
      }
    }
    return tensor_of(dtype, cache(), values);
  }
  [[nodiscard]] std::string text() const {
    std::string out = std::to_string(tokens) + " tokens behind";
    for (const Dim of : past) out += " " + std::to_string(of);
    return out + ", heads " + std::to_string(layout.heads) + " to " +
           std::to_string(layout.kv_heads) + " of " + std::to_string(layout.head_width) +
           ", window " + std::to_string(window) + ", pages of " + std::to_string(page);
  }
};

using Attend = std::function<decltype(attention_cached_forward)>;

/// The outputs of tokens that are no fillers. The past that the call passes on the host is wrong on
/// the GPU, as in a graph that is replayed.
void expect_as_on_cpu(DType dtype, const Case& of,
                      const Attend& attend = attention_cached_forward) {
  const HeadLayout& layout = of.layout;
  const Dim B = of.samples();
  const Dim kept = of.tokens - of.fillers;
  const Dim half = of.rope ? layout.head_width / 4 : 0;
  const Dim width = layout.heads * layout.head_width;
  const Dim positions = of.longest() + of.spare;
  const bool paged = of.page > 0;
  std::vector<std::int32_t> lengths(of.past.begin(), of.past.end());
  if (std::ranges::count(of.past, of.past.front()) == B) lengths.resize(1);
  Problem problem(dtype);
  problem.input(random_tensor(dtype, {B, of.tokens, layout.packed_width()}, 1))
      .input(of.filled_cache(dtype, 2))
      .input(of.filled_cache(dtype, 3))
      .output(dtype, {B, kept, width})
      .input(poisoned(dtype, {B, of.tokens, width}))
      .input(random_tensor(dtype, {layout.heads}, 4))
      .input(Tensor(Device::cpu, DType::f32, {positions, std::max<Dim>(1, half)}))
      .input(Tensor(Device::cpu, DType::f32, {positions, std::max<Dim>(1, half)}))
      .fixed(int_tensor({std::ssize(lengths)}, lengths));
  if (paged) problem.fixed(int_tensor({B, of.most()}, of.pages()));
  problem.expect_match(
      [&](Context& ctx, const Problem::Views& v) {
        RotaryTables tables;
        if (half > 0) {
          rope_table(ctx, rope_frequencies(1e4, half), 1, v[6], v[7]);
          tables = {v[6], v[7]};
        }
        AttentionScores scores(AttentionMask{AttentionMask::Kind::causal, of.window});
        scores.softcap = of.softcap;
        if (of.sinks) scores.sinks.logits = v[5];
        const Dim past = ctx.device() == Device::cuda ? 0 : std::ranges::max(of.past);
        attend(ctx, layout, scores, tables, v[0], {v[1], v[2], {past, v[8]}, paged ? v[9] : View()},
               v[4]);
        for (Dim b = 0; b < B; ++b) {
          copy(ctx, v[4].slice(b, 1).reshaped({of.tokens, width}).slice(0, kept),
               v[3].slice(b, 1).reshaped({kept, width}));
        }
      },
      of.text());
}

const std::vector<HeadLayout> kLayouts = {{4, 4, 64},  {8, 2, 128}, {6, 2, 64}, {3, 3, 80},
                                          {4, 1, 256}, {2, 2, 32},  {2, 1, 8},  {2, 1, 17}};

TEST_F(GpuAttentionCached, InPages) {
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout : kLayouts) {
      for (const Dim tokens : {32, 63, 64, 65, 130}) {
        expect_as_on_cpu(dtype, {.past = {0}, .layout = layout, .tokens = tokens});
        expect_as_on_cpu(dtype, {.past = {0, 40, 64, 129}, .layout = layout, .tokens = tokens});
      }
    }
  }
}

TEST_F(GpuAttentionCached, WithoutPages) {
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout : kLayouts) {
      for (const Dim tokens : {32, 64, 65, 130}) {
        for (const Dim past : {0, 1, 63, 64, 200}) {
          expect_as_on_cpu(dtype, {.past = {past}, .layout = layout, .tokens = tokens, .page = 0});
        }
        expect_as_on_cpu(
            dtype, {.past = {70, 70}, .layout = layout, .tokens = tokens, .page = 0, .spare = 100});
        expect_as_on_cpu(dtype,
                         {.past = {0, 40, 129}, .layout = layout, .tokens = tokens, .page = 0});
      }
    }
  }
}

/// Every row of the table that suits computes the problem; `launched` counts them.
TEST_F(GpuAttentionCached, EveryKernelThatSuitsMatchesTheOracle) {
  std::vector<int> launched(cuda::kAttentionCached.size());
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout : kLayouts) {
      for (const Dim tokens : {1, 5, 70}) {
        for (const Dim page : {0, 64}) {
          for (std::size_t row = 0; row < cuda::kAttentionCached.size(); ++row) {
            const auto& kernel = cuda::kAttentionCached.at(row);
            const auto attend = [&](Context& ctx, const HeadLayout& heads,
                                    const AttentionScores& scores, const RotaryTables& tables,
                                    View qkv, const KeyValueCache& cache, View out) {
              const cuda::CacheProblem problem = {heads, scores, tables, qkv, cache, out};
              const bool suits =
                  cuda::reason_against(kernel, problem, cuda::features_of_kernels()).empty();
              if (ctx.device() != Device::cuda || !suits) {
                return attention_cached_forward(ctx, heads, scores, tables, qkv, cache, out);
              }
              ++launched[row];
              kernel.launch(ctx, heads, scores, tables, qkv, cache, out);
            };
            expect_as_on_cpu(dtype,
                             {.past = {90, 90}, .layout = layout, .tokens = tokens, .page = page},
                             attend);
          }
        }
      }
    }
  }
  for (std::size_t row = 0; row < launched.size(); ++row) {
    if (!cuda::features_of_kernels().has(cuda::kAttentionCached.at(row).needs)) continue;
    EXPECT_GT(launched[row], 0) << cuda::kAttentionCached.at(row).name;
  }
}

TEST_F(GpuAttentionCached, OtherScores) {
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout :
         std::vector<HeadLayout>{{4, 4, 64}, {8, 2, 128}, {3, 3, 80}, {2, 1, 256}}) {
      for (const Dim window : {1, 17, 64, 100}) {
        expect_as_on_cpu(
            dtype, {.past = {0, 33, 128, 300}, .layout = layout, .tokens = 100, .window = window});
        expect_as_on_cpu(
            dtype, {.past = {333}, .layout = layout, .tokens = 70, .window = window, .page = 0});
      }
      for (const Dim page : {0, 64}) {
        expect_as_on_cpu(
            dtype,
            {.past = {77, 77}, .layout = layout, .tokens = 90, .softcap = 0.8, .page = page});
        expect_as_on_cpu(
            dtype, {.past = {77, 77}, .layout = layout, .tokens = 90, .sinks = true, .page = page});
        expect_as_on_cpu(dtype, {.past = {150},
                                 .layout = layout,
                                 .tokens = 90,
                                 .window = 50,
                                 .softcap = 2,
                                 .sinks = true,
                                 .page = page,
                                 .rope = false});
      }
    }
  }
}

TEST_F(GpuAttentionCached, PagesOfOtherSizes) {
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout : std::vector<HeadLayout>{{4, 4, 64}, {8, 2, 128}, {3, 3, 80}}) {
      for (const Dim page : {1, 8, 16, 32, 128}) {
        expect_as_on_cpu(dtype,
                         {.past = {0, 50, 131}, .layout = layout, .tokens = 70, .page = page});
      }
    }
  }
}

TEST_F(GpuAttentionCached, TokensWithoutAPageChangeNothing) {
  for (const DType dtype : kGpuTypes) {
    for (const HeadLayout& layout : std::vector<HeadLayout>{{4, 4, 64}, {8, 2, 128}, {3, 3, 80}}) {
      for (const Dim fillers : {1, 30, 75}) {
        for (const Dim page : {16, 64}) {
          expect_as_on_cpu(dtype, {.past = {0, 60, 129},
                                   .layout = layout,
                                   .tokens = 160,
                                   .page = page,
                                   .fillers = fillers});
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
