// SPDX-License-Identifier: Apache-2.0
#include "attention_case.hpp"
#include "finite_difference.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class AttentionSinksTest : public OpsTest {};

std::vector<AttentionSize> sizes_with_sinks() {
  std::vector<AttentionSize> sizes = {
      {2, 5, {2, 2, 3}},
      {1, 6, {4, 2, 2}},
      {1, 7, {3, 1, 3}, {AttentionMask::Kind::causal, 3}},
      {2, 7, {2, 1, 3}, kCausal, 3, 0.8},
      {1, 6, {4, 2, 2}, kNoMask, 0, 0.8, 0.6},
      {2, 9, {2, 1, 2}, {AttentionMask::Kind::causal, 4}, 5, 0.8, 0.6}};
  for (AttentionSize& size : sizes) size.sinks = true;
  return sizes;
}

/// What the definition says of one query: weights of its keys, and of the sink.
struct Row {
  std::vector<double> keys;
  double sink = 0;
  double log_sum_exp = 0;
};

Row row_of(const AttentionCase& c, Dim b, Dim h, Dim t) {
  const AttentionSize& size = c.size;
  const HeadLayout& layout = size.layout;
  const auto qkv = to_doubles(c.qkv.view());
  const Dim packed = layout.packed_width();
  const Dim kv = h / (layout.heads / layout.kv_heads);
  const double sink = to_doubles(c.sinks.view())[static_cast<std::size_t>(h)];
  const Dim end = size.mask.kind == AttentionMask::Kind::causal ? t + 1 : size.T;
  Row row;
  double sum = std::exp(sink);
  for (Dim j = 0; j < size.T; ++j) {
    double score = 0;
    for (Dim d = 0; d < layout.head_width; ++d) {
      score += qkv[(b * size.T + t) * packed + h * layout.head_width + d] *
               qkv[(b * size.T + j) * packed + (layout.heads + kv) * layout.head_width + d];
    }
    score *= c.scores().scale_of(layout);
    if (size.softcap > 0) score = size.softcap * std::tanh(score / size.softcap);
    const bool seen = j >= c.first_key(b, t) && j < end;
    row.keys.push_back(seen ? std::exp(score) : 0);
    sum += row.keys.back();
  }
  for (double& weight : row.keys) weight /= sum;
  row.sink = std::exp(sink) / sum;
  row.log_sum_exp = std::log(sum);
  return row;
}

/// Of all samples, queries, heads and elements.
void expect_definition(const AttentionCase& c, double within) {
  const HeadLayout& layout = c.size.layout;
  const Dim T = c.size.T;
  const auto qkv = to_doubles(c.qkv.view());
  const auto out = to_doubles(c.out.view());
  const auto weights = to_doubles(c.sink_weights.view());
  for (Dim b = 0; b < c.size.B; ++b) {
    for (Dim h = 0; h < layout.heads; ++h) {
      const Dim value = (layout.heads + layout.kv_heads + h / (layout.heads / layout.kv_heads)) *
                        layout.head_width;
      for (Dim t = 0; t < T; ++t) {
        const Row row = row_of(c, b, h, t);
        EXPECT_NEAR(weights[(b * layout.heads + h) * T + t], row.sink, within);
        for (Dim d = 0; d < layout.head_width; ++d) {
          double expected = 0;
          for (Dim j = 0; j < T; ++j) {
            expected += row.keys[j] * qkv[(b * T + j) * layout.packed_width() + value + d];
          }
          ASSERT_NEAR(out[((b * T + t) * layout.heads + h) * layout.head_width + d], expected,
                      within);
        }
      }
    }
  }
}

TEST_F(AttentionSinksTest, BothPathsAreTheDefinition) {
  std::vector<AttentionSize> sizes = sizes_with_sinks();
  sizes.push_back({1, 131, {2, 2, 17}});
  sizes.back().sinks = true;
  for (const AttentionSize& size : sizes) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const double within = 10 * tolerance(dtype);
      AttentionCase c(size, dtype);

      c.forward(ctx);
      expect_definition(c, within);
      const auto log_sum_exp = to_doubles(c.log_sum_exp.view());
      EXPECT_NEAR(log_sum_exp.back(),
                  row_of(c, size.B - 1, size.layout.heads - 1, size.T - 1).log_sum_exp, within);

      AttentionCase reference(size, dtype);
      reference.reference_forward(ctx);
      expect_definition(reference, within);
    }
  }
}

TEST_F(AttentionSinksTest, GradientsMatchDifferences) {
  for (const AttentionSize& size : sizes_with_sinks()) {
    AttentionCase c(size, DType::f64);

    c.forward(ctx);
    c.backward(ctx);
    c.sinks_backward(ctx);

    const Tensor gradient = c.dqkv.clone();
    const Tensor of_sinks = c.dsinks.clone();
    const auto value = [&] {
      c.forward(ctx);
      return inner_product(c.dout.view(), c.out.view());
    };
    expect_gradient("dqkv", c.qkv.view(), gradient.view(), value);
    expect_gradient("dsinks", c.sinks.view(), of_sinks.view(), value);
  }
}

TEST_F(AttentionSinksTest, GradientsOfTheReferencePathMatchDifferencesWithAndWithoutDropout) {
  const StepState state = {.input = {.step = 3}};
  const Tensor position = tensor_of(DType::i64, {2}, {4, 9});
  for (const AttentionSize& size : sizes_with_sinks()) {
    for (const float probability : {0.0F, 0.4F}) {
      const Dropout dropout_spec = {probability, 1, 2, position.view().slice(0, size.B), &state};
      AttentionCase c(size, DType::f64);

      c.reference_forward(ctx, dropout_spec);
      c.reference_backward(ctx, dropout_spec);
      c.sinks_backward(ctx);

      const Tensor gradient = c.dqkv.clone();
      const Tensor of_sinks = c.dsinks.clone();
      const auto value = [&] {
        c.reference_forward(ctx, dropout_spec);
        return inner_product(c.dout.view(), c.out.view());
      };
      expect_gradient("dqkv", c.qkv.view(), gradient.view(), value);
      expect_gradient("dsinks", c.sinks.view(), of_sinks.view(), value);
    }
  }
}

TEST_F(AttentionSinksTest, GradientsAddUpOnlyIfAsked) {
  AttentionSize size = {2, 5, {2, 2, 3}};
  size.sinks = true;
  AttentionCase c(size, DType::f32);
  c.forward(ctx);
  c.sinks_backward(ctx);
  const auto once = to_doubles(c.dsinks.view());

  c.sinks_backward(ctx, Accumulate::yes);

  const auto twice = to_doubles(c.dsinks.view());
  for (std::size_t h = 0; h < once.size(); ++h) EXPECT_NEAR(twice[h], 2 * once[h], 1e-6);
}

TEST_F(AttentionSinksTest, ACacheGivesTheSame) {
  AttentionSize size = {2, 23, {4, 2, 8}};
  size.sinks = true;
  for (const DType dtype : {DType::f64, DType::f32}) {
    AttentionCase full(size, dtype);
    full.forward(ctx);
    Tensor keys = poisoned(dtype, {2, 30, 16});
    Tensor values = poisoned(dtype, {2, 30, 16});
    AttentionScores scores = full.scores();
    scores.sinks.weights = {};
    Tensor out = poisoned(dtype, {2, 22, 32});
    const auto qkv = to_doubles(full.qkv.view());
    const auto expected = to_doubles(full.out.view());
    const Dim packed = size.layout.packed_width();
    const auto rows = [&](const std::vector<double>& all, Dim width, Dim first, Dim count) {
      std::vector<double> part;
      for (Dim b = 0; b < 2; ++b) {
        const auto begin = all.begin() + (b * size.T + first) * width;
        part.insert(part.end(), begin, begin + count * width);
      }
      return tensor_of(dtype, {2, count, width}, part);
    };

    Tensor prompt = rows(qkv, packed, 0, 22);
    attention_cached_forward(ctx, size.layout, scores, {}, prompt.view(),
                             {keys.view(), values.view(), 0}, out.view());
    expect_close(out.view(), rows(expected, 32, 0, 22).view(), "prompt", 0.1);
    Tensor token = rows(qkv, packed, 22, 1);
    Tensor last = poisoned(dtype, {2, 1, 32});
    attention_cached_forward(ctx, size.layout, scores, {}, token.view(),
                             {keys.view(), values.view(), 22}, last.view());
    expect_close(last.view(), rows(expected, 32, 22, 1).view(), "token", 0.1);
  }
}

TEST_F(AttentionSinksTest, ALargeSinkTakesAllAndASmallOneNothing) {
  AttentionSize size = {1, 5, {1, 1, 2}};
  AttentionCase without(size, DType::f32);
  without.forward(ctx);
  size.sinks = true;
  for (const bool reference : {false, true}) {
    AttentionCase c(size, DType::f32);
    const auto run = [&](float sink) {
      c.sinks.view().data<float>()[0] = sink;
      reference ? c.reference_forward(ctx) : c.forward(ctx);
    };
    run(-1e4F);
    expect_close(c.out.view(), without.out.view(), "a sink of nothing", 0.1);
    expect_values(c.sink_weights.view(), std::vector<double>(5, 0.0), 1e-30);
    run(1e4F);
    expect_values(c.out.view(), std::vector<double>(10, 0.0), 1e-30);
    expect_values(c.sink_weights.view(), std::vector<double>(5, 1.0), 0);
  }
}

TEST_F(AttentionSinksTest, WrongOperandsAreNamed) {
  AttentionSize size = {1, 5, {2, 2, 2}};
  size.sinks = true;
  AttentionCase c(size, DType::f32);
  AttentionScores scores = c.scores();
  scores.sinks.logits = c.sinks.view().slice(0, 1);
  expect_error_naming("attention_forward sinks", [&] {
    attention_forward(ctx, size.layout, scores, c.qkv.view(), c.out.view(), c.log_sum_exp.view());
  });
  scores.sinks = {{}, c.sink_weights.view()};
  expect_error_naming("attention_forward sinks: weights without logits", [&] {
    attention_forward(ctx, size.layout, scores, c.qkv.view(), c.out.view(), c.log_sum_exp.view());
  });
  expect_error_naming("attention_sinks_backward dlogits", [&] {
    attention_sinks_backward(ctx, size.layout, c.dout.view(), c.out.view(), c.sink_weights.view(),
                             Accumulate::no, c.sink_weights.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
