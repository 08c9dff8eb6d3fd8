// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "attention_case.hpp"
#include "finite_difference.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

/// Operands in buffers of their own, or in columns of wider ones.
class AttentionOperandsTest : public OpsTest {};

struct OperandSize {
  Dim B, queries, keys;
  Dim heads, kv_heads, key_width, value_width;
  Dim first_query = 0;
  AttentionMask mask = kCausal;
  double softcap = 0;
  bool confined = false;  ///< with first_keys
  Dim beside = 0;         ///< columns before and behind the heads of a row
};

/// More keys than queries and fewer, queries before all keys and behind their windows, blocks of
/// queries without a key.
std::vector<OperandSize> sizes_of_operands() {
  const AttentionMask window = {AttentionMask::Kind::causal, 7};
  return {{1, 1, 1, 1, 1, 1, 1},
          {2, 5, 9, 4, 2, 3, 8, 4, kCausal, 0, false, 3},
          {2, 41, 41, 4, 2, 24, 16, 0, kCausal, 0.7, false, 1},
          {1, 37, 61, 2, 1, 8, 17, 24, window, 0, true},
          {1, 61, 37, 3, 1, 5, 5, 0, kNoMask, 0, false, 2},
          {2, 90, 40, 2, 2, 4, 6, -45, kCausal},
          {1, 90, 160, 2, 1, 6, 4, 70, kCausal, 0, true, 5},
          {1, 80, 20, 2, 2, 4, 4, 0, window},
          {1, 0, 20, 2, 2, 4, 4, 0, kNoMask},
          {1, 20, 0, 2, 2, 4, 4, 0, kNoMask}};
}

template <class V>
HeadsOf<V> heads_in(V base, const OperandSize& size, Dim heads, Dim width) {
  return {base, size.beside, heads, width};
}

struct OperandCase {
  OperandSize size;
  Tensor q, k, v, dout, first_keys;
  Tensor out, log_sum_exp, dq, dk, dv;

  OperandCase(const OperandSize& s, DType dtype)
      : size(s),
        q(random(dtype, buffer(s.queries, s.heads * s.key_width), 1)),
        k(random(dtype, buffer(s.keys, s.kv_heads * s.key_width), 2)),
        v(random(dtype, buffer(s.keys, s.kv_heads * s.value_width), 3)),
        dout(random(dtype, {s.B, s.queries, s.heads * s.value_width}, 4)),
        out(poisoned(dtype, dout.view().shape())),
        log_sum_exp(poisoned(dtype == DType::bf16 ? DType::f32 : dtype, {s.B, s.heads, s.queries})),
        dq(filled_tensor(dtype, q.view().shape(), 0.5)),
        dk(filled_tensor(dtype, k.view().shape(), 0.5)),
        dv(filled_tensor(dtype, v.view().shape(), 0.5)) {
    std::vector<double> first;
    for (Dim i = 0; i < s.B * s.queries; ++i) first.push_back(double(i % s.queries / 11 * 10));
    if (s.confined) first_keys = tensor_of(DType::i32, {s.B, s.queries}, first);
  }
  [[nodiscard]] Shape buffer(Dim tokens, Dim columns) const {
    return {size.B, tokens, columns + 2 * size.beside};
  }
  static Tensor random(DType dtype, const Shape& shape, std::uint64_t seed) {
    return converted(random_tensor(DType::f32, shape, seed).view(), dtype);
  }

  [[nodiscard]] AttentionOperands operands() const {
    return {heads_in<CView>(q.view(), size, size.heads, size.key_width),
            heads_in<CView>(k.view(), size, size.kv_heads, size.key_width),
            heads_in<CView>(v.view(), size, size.kv_heads, size.value_width), size.first_query};
  }
  [[nodiscard]] AttentionScores scores() const {
    AttentionScores scores(size.mask);
    scores.softcap = size.softcap;
    if (size.confined) scores.first_keys = first_keys.view();
    return scores;
  }
  [[nodiscard]] AttentionPart part() const { return {out.view(), log_sum_exp.view()}; }
  void forward(Context& ctx) {
    attention_operands_forward(ctx, operands(), scores(), out.view(), log_sum_exp.view());
  }
  void backward(Context& ctx) {
    attention_operands_backward(ctx, operands(), scores(), dout.view(), part(),
                                {heads_in(dq.view(), size, size.heads, size.key_width),
                                 heads_in(dk.view(), size, size.kv_heads, size.key_width),
                                 heads_in(dv.view(), size, size.kv_heads, size.value_width)});
  }
  /// The first key of a query, before its own position.
  [[nodiscard]] Dim first_key(Dim b, Dim i) const {
    const Dim position = size.first_query + i;
    const Dim first =
        size.mask.window > 0 ? std::max<Dim>(0, position + 1 - size.mask.window) : Dim{0};
    if (!size.confined) return first;
    const Dim of_document = first_keys.view().data<std::int32_t>()[b * size.queries + i];
    return std::max(first, std::min(of_document, position));
  }
};

double element_of(const Tensor& tensor, Dim b, Dim t, Dim column) {
  const Shape shape = tensor.view().shape();
  return tensor.view().data<double>()[(b * shape[1] + t) * shape[2] + column];
}

/// One query by the definition: the values' sum and, last, the log-sum-exp.
std::vector<double> by_definition(const OperandCase& c, Dim b, Dim h, Dim i) {
  const OperandSize& s = c.size;
  const Dim kv = h / (s.heads / s.kv_heads);
  std::vector<double> sums(static_cast<std::size_t>(s.value_width) + 1);
  for (Dim j = c.first_key(b, i); j < s.keys; ++j) {
    if (s.mask.kind == AttentionMask::Kind::causal && j > s.first_query + i) break;
    double score = 0;
    for (Dim d = 0; d < s.key_width; ++d) {
      score += element_of(c.q, b, i, s.beside + h * s.key_width + d) *
               element_of(c.k, b, j, s.beside + kv * s.key_width + d);
    }
    score /= std::sqrt(static_cast<double>(s.key_width));
    if (s.softcap > 0) score = s.softcap * std::tanh(score / s.softcap);
    for (Dim d = 0; d < s.value_width; ++d) {
      sums[d] += std::exp(score) * element_of(c.v, b, j, s.beside + kv * s.value_width + d);
    }
    sums.back() += std::exp(score);
  }
  for (Dim d = 0; d < s.value_width; ++d) sums[d] /= sums.back() > 0 ? sums.back() : 1;
  sums.back() = std::log(sums.back());
  return sums;
}

TEST_F(AttentionOperandsTest, MatchTheDefinition) {
  for (const OperandSize& s : sizes_of_operands()) {
    OperandCase c(s, DType::f64);
    c.forward(ctx);
    for (Dim row = 0; row < s.B * s.heads * s.queries; ++row) {
      const Dim i = row % s.queries;
      const Dim h = row / s.queries % s.heads;
      const Dim b = row / s.queries / s.heads;
      const std::vector<double> expected = by_definition(c, b, h, i);
      const double log_sum = c.log_sum_exp.view().data<double>()[row];
      if (std::isinf(expected.back())) {
        ASSERT_EQ(log_sum, expected.back());
      } else {
        ASSERT_NEAR(log_sum, expected.back(), 1e-11);
      }
      for (Dim d = 0; d < s.value_width; ++d) {
        ASSERT_NEAR(element_of(c.out, b, i, h * s.value_width + d), expected[d], 1e-11)
            << s.queries << " queries, " << s.keys << " keys, query " << i;
      }
    }
  }
}

TEST_F(AttentionOperandsTest, SinglesAndHalvesMatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const OperandSize& s : sizes_of_operands()) {
      OperandCase found(s, dtype);
      OperandCase oracle(s, DType::f64);
      for (auto [to, from] : {std::pair{&oracle.q, &found.q},
                              {&oracle.k, &found.k},
                              {&oracle.v, &found.v},
                              {&oracle.dout, &found.dout}}) {
        *to = converted(from->view(), DType::f64);
      }
      for (OperandCase* c : {&found, &oracle}) {
        c->forward(ctx);
        c->backward(ctx);
      }
      const double slack = dtype == DType::bf16 ? 2 : 1;
      expect_matches_oracle(found.out.view(), oracle.out.view(), "out", slack);
      expect_matches_oracle(found.dq.view(), oracle.dq.view(), "dq", slack);
      expect_matches_oracle(found.dk.view(), oracle.dk.view(), "dk", slack);
      expect_matches_oracle(found.dv.view(), oracle.dv.view(), "dv", slack);
    }
  }
}

TEST_F(AttentionOperandsTest, GradientsMatchDifferences) {
  const AttentionMask window = {AttentionMask::Kind::causal, 3};
  for (const OperandSize& s : {OperandSize{2, 3, 5, 4, 2, 3, 2, 2},
                               {1, 6, 4, 2, 1, 2, 5, -2},
                               {1, 5, 7, 2, 2, 3, 4, 1, window, 0.6},
                               {1, 4, 6, 2, 1, 2, 3, 0, kNoMask}}) {
    OperandCase c(s, DType::f64);
    c.forward(ctx);
    c.backward(ctx);
    const auto value = [&] {
      c.forward(ctx);
      return inner_product(c.dout.view(), c.out.view());
    };
    expect_gradient("dq", c.q.view(), c.dq.clone().view(), value);
    expect_gradient("dk", c.k.view(), c.dk.clone().view(), value);
    expect_gradient("dv", c.v.view(), c.dv.clone().view(), value);
  }
}

TEST_F(AttentionOperandsTest, GradientsLeaveTheRestOfTheirBuffers) {
  OperandCase c({1, 3, 4, 2, 1, 2, 3, 1, kCausal, 0, false, 2}, DType::f64);
  c.forward(ctx);
  c.backward(ctx);
  for (const Tensor* gradient : {&c.dq, &c.dk, &c.dv}) {
    const Shape shape = gradient->view().shape();
    for (Dim t = 0; t < shape[1]; ++t) {
      for (const Dim column : {Dim{0}, Dim{1}, shape[2] - 2, shape[2] - 1}) {
        EXPECT_EQ(element_of(*gradient, 0, t, column), 0.5);
      }
      EXPECT_NE(element_of(*gradient, 0, t, 2), 0.5);
    }
  }
}

/// Attention to keys [begin, end) of a case.
OperandCase keys_of(const OperandCase& all, Dim begin, Dim end) {
  OperandSize s = all.size;
  s.keys = end - begin;
  s.first_query -= begin;
  OperandCase part(s, DType::f64);
  for (auto [to, from] : {std::pair{&part.k, &all.k}, {&part.v, &all.v}}) {
    const Dim row = from->view().shape()[2];
    for (Dim b = 0; b < s.B; ++b) {
      std::copy_n(from->view().data<double>() + (b * all.size.keys + begin) * row, s.keys * row,
                  to->view().data<double>() + b * s.keys * row);
    }
  }
  return part;
}

/// Merged outputs, and with them the parts of the gradients, are those of all keys at once.
TEST_F(AttentionOperandsTest, PartsMergeToTheWhole) {
  for (const AttentionMask& mask :
       {kCausal, kNoMask, AttentionMask{AttentionMask::Kind::causal, 9}}) {
    for (const std::vector<Dim>& cuts :
         {std::vector<Dim>{0, 20, 50}, {0, 1, 33, 50}, {0, 49, 50}}) {
      OperandCase whole({2, 50, 50, 4, 2, 6, 5, 0, mask}, DType::f64);
      whole.forward(ctx);
      whole.backward(ctx);
      std::vector<OperandCase> parts;
      for (std::size_t i = 1; i < cuts.size(); ++i) {
        parts.push_back(keys_of(whole, cuts[i - 1], cuts[i]));
        parts.back().forward(ctx);
      }
      Tensor out = parts[0].out.clone();
      Tensor sums = parts[0].log_sum_exp.clone();
      for (std::size_t i = 1; i < parts.size(); ++i) {
        merge_attention(ctx, parts[i].part(), {out.view(), sums.view()}, out.view(), sums.view());
      }
      expect_values(out.view(), to_doubles(whole.out.view()), 1e-11);
      expect_values(sums.view(), to_doubles(whole.log_sum_exp.view()), 1e-11);
      std::vector<double> dq(to_doubles(whole.dq.view()).size());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i].out = out.clone();
        parts[i].log_sum_exp = sums.clone();
        parts[i].backward(ctx);
        const std::vector<double> part = to_doubles(parts[i].dq.view());
        std::ranges::transform(dq, part, dq.begin(), std::plus());
        const OperandCase& p = parts[i];
        const Dim row = p.dk.view().shape()[2];
        for (Dim t = 0; t < p.size.keys; ++t) {
          for (Dim c = 0; c < row; ++c) {
            ASSERT_NEAR(element_of(p.dk, 1, t, c), element_of(whole.dk, 1, cuts[i] + t, c), 1e-11);
          }
        }
      }
      expect_values(whole.dq.view(), dq, 1e-11);
    }
  }
}

TEST_F(AttentionOperandsTest, PartsWithoutKeysDoNotCount) {
  const double none = -std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const DType statistic = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Tensor a = tensor_of(dtype, {1, 2, 2}, {1, 2, 0, 0});
    const Tensor b = tensor_of(dtype, {1, 2, 2}, {0, 0, 0, 0});
    const Tensor sum_a = tensor_of(statistic, {1, 1, 2}, {-300, none});
    const Tensor sum_b = tensor_of(statistic, {1, 1, 2}, {none, none});
    Tensor out = poisoned(dtype, {1, 2, 2});
    Tensor sums = poisoned(statistic, {1, 1, 2});
    merge_attention(ctx, {a.view(), sum_a.view()}, {b.view(), sum_b.view()}, out.view(),
                    sums.view());
    EXPECT_EQ(to_doubles(out.view()), to_doubles(a.view()));
    EXPECT_EQ(to_doubles(sums.view()), to_doubles(sum_a.view()));
  }
}

TEST_F(AttentionOperandsTest, PackedOnesHaveTheBitsOfThePackedOp) {
  AttentionCase packed({2, 33, {4, 2, 17}}, DType::f32);
  AttentionCase operands({2, 33, {4, 2, 17}}, DType::f32);
  packed.forward(ctx);
  const AttentionOperands views = packed_operands(operands.size.layout, operands.qkv.view());
  attention_operands_forward(ctx, views, kCausal, operands.out.view(), operands.log_sum_exp.view());
  EXPECT_TRUE(same_bits(packed.out.view(), operands.out.view()));
  EXPECT_TRUE(same_bits(packed.log_sum_exp.view(), operands.log_sum_exp.view()));
  const Tensor keys = operands.qkv.clone();  // keys elsewhere: not the packed op
  AttentionOperands apart = views;
  apart.k.base = keys.view();
  attention_operands_forward(ctx, apart, kCausal, operands.out.view(), operands.log_sum_exp.view());
  EXPECT_TRUE(same_bits(packed.out.view(), operands.out.view()));
}

TEST_F(AttentionOperandsTest, WrongOperandsAreNamed) {
  OperandCase c({1, 3, 4, 4, 2, 2, 3}, DType::f32);
  const auto call = [&](const AttentionOperands& operands) {
    attention_operands_forward(ctx, operands, kCausal, c.out.view(), c.log_sum_exp.view());
  };
  AttentionOperands wide = c.operands();
  wide.k.width = 3;
  expect_error_naming("attention_operands_forward k", [&] { call(wide); });
  AttentionOperands behind = c.operands();
  behind.v.first = 1;
  expect_error_naming("attention_operands_forward v", [&] { call(behind); });
  AttentionOperands heads = c.operands();
  heads.k.heads = heads.v.heads = 1;
  heads.q.heads = 5;
  expect_error_naming("attention_operands_forward q", [&] { call(heads); });
  expect_error_naming("merge_attention log_sum_exp", [&] {
    merge_attention(ctx, c.part(), {c.out.view(), c.out.view()}, c.out.view(),
                    c.log_sum_exp.view());
  });
}

TEST(AttentionOperandsOnMeta, CountThePairsThatTheMaskLeaves) {
  const auto view = [](const Shape& shape) {
    return View(nullptr, DType::f32, Device::meta, shape);
  };
  const auto flops = [&](const AttentionMask& mask, Device planned, bool backward) {
    Context ctx(Device::meta, 0, planned);
    const HeadsOf<View> q = {view({2, 3, 20}), 0, 4, 5};
    const HeadsOf<View> k = {view({2, 4, 10}), 0, 2, 5};
    const HeadsOf<View> v = {view({2, 4, 14}), 0, 2, 7};
    const AttentionOperands operands = {{q.base, 0, 4, 5}, {k.base, 0, 2, 5}, {v.base, 0, 2, 7}, 2};
    const View out = view({2, 3, 28});
    const View sums = view({2, 4, 3});
    if (backward) {
      attention_operands_backward(ctx, operands, mask, out, {out, sums}, {q, k, v});
    } else {
      attention_operands_forward(ctx, operands, mask, out, sums);
    }
    return ctx.ledger().total().flops;
  };
  // Queries at positions 2, 3 and 4 of 4 keys see 3, 4 and 4; with a window of 2: 2, 2 and 1.
  EXPECT_EQ(flops(kCausal, Device::cpu, false), 2.0 * 2 * 4 * 11 * (5 + 7));
  EXPECT_EQ(flops(kNoMask, Device::cpu, false), 2.0 * 2 * 4 * 12 * (5 + 7));
  EXPECT_EQ(flops({AttentionMask::Kind::causal, 2}, Device::cpu, false), 2.0 * 2 * 4 * 5 * (5 + 7));
  EXPECT_EQ(flops(kCausal, Device::cpu, true), 2.0 * 2 * 4 * 11 * (3 * 5 + 2 * 7));
  expect_error_naming("attention_operands_forward: GPUs attend only from packed",
                      [&] { (void)flops(kCausal, Device::cuda, false); });
}

}  // namespace
}  // namespace hyperslab::ops
