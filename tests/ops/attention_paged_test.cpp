// SPDX-License-Identifier: Apache-2.0
// A cache whose samples differ in length, in pages or without, against full attention of each
// sample alone.
#include <algorithm>
#include <numeric>

#include "attention_case.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class AttentionPaged : public OpsTest {};

constexpr Dim kPage = 16;
constexpr Dim kMost = 9;  // pages of a sample

/// Pages of several samples, dealt out in an order that is none, or one of each sample.
struct Pages {
  Pages(DType dtype, Dim samples, Dim width, bool in_order)
      : keys(poisoned(dtype, in_order ? Shape{samples, kMost * kPage, width}
                                      : Shape{samples * kMost, kPage, width})),
        values(poisoned(dtype, keys.view().shape())) {
    if (in_order) return;
    std::vector<double> order(static_cast<std::size_t>(samples * kMost));
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<double>((i * 11 + 3) % order.size());
    }
    table = tensor_of(DType::i32, {samples, kMost}, order);
  }
  /// The cache of samples [first, first + count).
  [[nodiscard]] KeyValueCache of(Dim first, Dim count, const TokenPosition& past) {
    if (!table.view()) {
      return {keys.view().slice(first, count), values.view().slice(first, count), past};
    }
    return {keys.view(), values.view(), past, table.view().slice(first, count)};
  }
  Tensor keys;
  Tensor values;
  Tensor table;  ///< absent if the pages are in order
};

/// Rows [first, first + count) of the one sample of a tensor.
Tensor rows_of(const Tensor& all, Dim first, Dim count) {
  const Dim width = all.view().shape()[2];
  const auto values = to_doubles(all.view());
  const auto begin = values.begin() + first * width;
  return tensor_of(all.view().dtype(), {1, count, width}, {begin, begin + count * width});
}

/// Samples of some lengths, and what full attention gives for each of them.
struct Samples {
  Samples(Context& ctx, DType dtype, const std::vector<Dim>& lengths, const HeadLayout& heads,
          const AttentionScores& of)
      : layout(heads), scores(of) {
    for (const Dim length : lengths) {
      const auto seed = static_cast<std::uint64_t>(length);
      qkv.push_back(random_tensor(dtype, {1, length, heads.packed_width()}, seed));
      out.push_back(poisoned(dtype, {1, length, heads.heads * heads.head_width}));
      Tensor sums = poisoned(dtype, {1, heads.heads, length});
      attention_forward(ctx, heads, of, qkv.back().view(), out.back().view(), sums.view());
    }
  }
  HeadLayout layout;
  AttentionScores scores;
  std::vector<Tensor> qkv;
  std::vector<Tensor> out;
};

/// Feeds all tokens of sample b but the last one, some at a time.
void fill_cache(Context& ctx, const Samples& samples, Dim b, Pages& pages) {
  const Tensor& qkv = samples.qkv[static_cast<std::size_t>(b)];
  const Dim length = qkv.view().shape()[1] - 1;
  for (Dim first = 0; first < length; first += 21) {
    const Dim count = std::min<Dim>(21, length - first);
    Tensor part = rows_of(qkv, first, count);
    Tensor out =
        poisoned(qkv.view().dtype(), {1, count, samples.layout.heads * samples.layout.head_width});
    attention_cached_forward(ctx, samples.layout, samples.scores, {}, part.view(),
                             pages.of(b, 1, first), out.view());
    expect_close(out.view(), rows_of(samples.out[static_cast<std::size_t>(b)], first, count).view(),
                 "prompt", 0.1);
  }
}

/// The last tokens of all samples together, each after its own.
void expect_last_tokens(Context& ctx, const Samples& samples, Pages& pages) {
  const DType dtype = samples.qkv.front().view().dtype();
  std::vector<double> newest;
  std::vector<double> expected;
  std::vector<double> past;
  for (std::size_t b = 0; b < samples.qkv.size(); ++b) {
    const Dim last = samples.qkv[b].view().shape()[1] - 1;
    const auto append = [&](const Tensor& all, std::vector<double>& to) {
      const auto values = to_doubles(rows_of(all, last, 1).view());
      to.insert(to.end(), values.begin(), values.end());
    };
    append(samples.qkv[b], newest);
    append(samples.out[b], expected);
    past.push_back(static_cast<double>(last));
  }
  const auto B = static_cast<Dim>(past.size());
  const Dim width = samples.layout.heads * samples.layout.head_width;
  Tensor qkv = tensor_of(dtype, {B, 1, samples.layout.packed_width()}, newest);
  Tensor out = poisoned(dtype, {B, 1, width});
  const Tensor lengths = tensor_of(DType::i32, {B}, past);

  const TokenPosition after = {static_cast<Dim>(std::ranges::max(past)), lengths.view()};
  attention_cached_forward(ctx, samples.layout, samples.scores, {}, qkv.view(),
                           pages.of(0, B, after), out.view());

  expect_close(out.view(), tensor_of(dtype, {B, 1, width}, expected).view(), "last token", 0.1);
}

TEST_F(AttentionPaged, EverySampleAttendsToItsOwnTokens) {
  const std::vector<Dim> lengths = {2, 1, 64, 65, 17, 130, 16};
  struct Scores {
    Dim window;
    double softcap;
    bool sinks;
  };
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const HeadLayout& layout : {HeadLayout{6, 2, 17}, HeadLayout{4, 4, 16}}) {
      for (const auto& [window, softcap, sinks] :
           {Scores{0, 0, false}, Scores{11, 0, false}, Scores{0, 0.7, true}}) {
        const Tensor logits = random_tensor(dtype, {layout.heads}, 5);
        AttentionScores scores(AttentionMask{AttentionMask::Kind::causal, window});
        scores.softcap = softcap;
        if (sinks) scores.sinks.logits = logits.view();
        const Samples samples(ctx, dtype, lengths, layout, scores);
        for (const bool in_order : {false, true}) {
          Pages pages(dtype, std::ssize(lengths), layout.kv_heads * layout.head_width, in_order);
          for (Dim b = 0; b < std::ssize(lengths); ++b) fill_cache(ctx, samples, b, pages);
          expect_last_tokens(ctx, samples, pages);
        }
      }
    }
  }
}

/// In f64, where sums of both are the same: bit by bit the path of samples of one length.
TEST_F(AttentionPaged, IsThePathWithoutPagesForSamplesOfOneLength) {
  const HeadLayout layout = {.heads = 4, .kv_heads = 2, .head_width = 8};
  const Dim past = 37;
  const Dim rows = kMost * kPage;
  Tensor cosines = poisoned(DType::f64, {rows, 3});
  Tensor sines = poisoned(DType::f64, {rows, 3});
  rope_table(ctx, rope_frequencies(1e4, 3), 1, cosines.view(), sines.view());
  const RotaryTables tables = {cosines.view(), sines.view()};
  Tensor qkv = random_tensor(DType::f64, {2, 3, layout.packed_width()}, 1);
  Tensor same = random_tensor(DType::f64, {2, 3, layout.packed_width()}, 1);
  Tensor keys = random_tensor(DType::f64, {2, rows, 16}, 2);
  Tensor values = random_tensor(DType::f64, {2, rows, 16}, 3);
  Tensor out = poisoned(DType::f64, {2, 3, 32});
  Tensor paged = poisoned(DType::f64, {2, 3, 32});
  std::vector<double> order(2 * kMost);
  std::iota(order.begin(), order.end(), 0);
  const Tensor table = tensor_of(DType::i32, {2, kMost}, order);
  const Tensor lengths = tensor_of(DType::i32, {2}, {double(past), double(past)});
  const Shape in_pages = {2 * kMost, kPage, 16};
  Tensor page_keys = random_tensor(DType::f64, {2, rows, 16}, 2);
  Tensor page_values = random_tensor(DType::f64, {2, rows, 16}, 3);

  attention_cached_forward(ctx, layout, AttentionMask(), tables, qkv.view(),
                           {keys.view(), values.view(), past}, out.view());
  attention_cached_forward(ctx, layout, AttentionMask(), tables, same.view(),
                           {page_keys.view().reshaped(in_pages),
                            page_values.view().reshaped(in_pages),
                            {past, lengths.view()},
                            table.view()},
                           paged.view());

  EXPECT_EQ(to_doubles(paged.view()), to_doubles(out.view()));
  EXPECT_EQ(to_doubles(page_keys.view()), to_doubles(keys.view()));
  EXPECT_EQ(to_doubles(page_values.view()), to_doubles(values.view()));
}

TEST_F(AttentionPaged, RotatesEverySampleByItsOwnPosition) {
  const HeadLayout layout = {.heads = 2, .kv_heads = 1, .head_width = 4};
  Tensor cosines = poisoned(DType::f64, {40, 2});
  Tensor sines = poisoned(DType::f64, {40, 2});
  rope_table(ctx, std::vector<double>{1, 0.1}, 1, cosines.view(), sines.view());
  const std::vector<double> positions = {31, 0, 7};
  Tensor together = random_tensor(DType::f64, {3, 2, layout.packed_width()}, 1);
  Tensor alone = random_tensor(DType::f64, {3, 2, layout.packed_width()}, 1);
  const Tensor live = tensor_of(DType::i32, {3}, positions);

  rope(ctx, layout, cosines.view(), sines.view(), {31, live.view()}, Rotation::forward,
       together.view());
  for (Dim b = 0; b < 3; ++b) {
    rope(ctx, layout, cosines.view(), sines.view(),
         static_cast<Dim>(positions[static_cast<std::size_t>(b)]), Rotation::forward,
         alone.view().slice(b, 1));
  }

  EXPECT_EQ(to_doubles(together.view()), to_doubles(alone.view()));
}

TEST_F(AttentionPaged, WrongOperandsAreNamed) {
  const HeadLayout layout = {2, 1, 4};
  Tensor qkv = random_tensor(DType::f32, {1, 2, layout.packed_width()}, 1);
  Tensor out = poisoned(DType::f32, {1, 2, 8});
  Tensor pages = filled_tensor(DType::f32, {4, 16, 4}, 0);
  Tensor odd = filled_tensor(DType::f32, {4, 15, 4}, 0);
  const Tensor table = tensor_of(DType::i32, {1, 2}, {0, 1});
  const auto call = [&](const AttentionScores& scores, View keys, Dim past) {
    attention_cached_forward(ctx, layout, scores, {}, qkv.view(), {keys, keys, past, table.view()},
                             out.view());
  };
  expect_error_naming("past", [&] { call(kCausal, pages.view(), 31); });
  expect_error_naming("keys", [&] { call(kCausal, odd.view(), 0); });
  expect_error_naming("mask", [&] { call(kNoMask, pages.view(), 0); });
  const Tensor two = tensor_of(DType::i32, {2, 2}, {0, 1, 2, 3});
  expect_error_naming("attention_cached_forward pages", [&] {
    attention_cached_forward(ctx, layout, kCausal, {}, qkv.view(),
                             {pages.view(), pages.view(), 0, two.view()}, out.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
