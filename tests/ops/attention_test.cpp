// SPDX-License-Identifier: Apache-2.0
#include "attention_case.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class Attention : public OpsTest {};

/// Element (b, t, column) of a packed or unpacked matrix.
double at(const Tensor& tensor, Dim b, Dim t, Dim column) {
  const Shape shape = tensor.view().shape();
  return tensor.view().data<double>()[(b * shape[1] + t) * shape[2] + column];
}

/// softmax(scale q k^T) v of one query by the definition; returns the log-sum-exp.
double attend_by_definition(const AttentionCase& c, Dim b, Dim h, Dim t, std::vector<double>& out) {
  const HeadLayout& layout = c.size.layout;
  const Dim D = layout.head_width;
  const Dim key = (layout.heads + h / (layout.heads / layout.kv_heads)) * D;
  const Dim value = key + layout.kv_heads * D;
  const Dim seen = c.size.mask.kind == AttentionMask::Kind::causal ? t + 1 : c.size.T;
  const Dim first = c.first_key(b, t);
  const double scale = c.size.scale > 0 ? c.size.scale : 1 / std::sqrt(double(D));
  std::vector<double> weight(static_cast<std::size_t>(seen));
  double sum = 0;
  for (Dim j = first; j < seen; ++j) {
    double score = 0;
    for (Dim d = 0; d < D; ++d) score += at(c.qkv, b, t, h * D + d) * at(c.qkv, b, j, key + d);
    score *= scale;
    if (c.size.softcap > 0) score = c.size.softcap * std::tanh(score / c.size.softcap);
    weight[j] = std::exp(score);
    sum += weight[j];
  }
  out.assign(static_cast<std::size_t>(D), 0.0);
  for (Dim j = 0; j < seen; ++j) {
    for (Dim d = 0; d < D; ++d) out[d] += weight[j] / sum * at(c.qkv, b, j, value + d);
  }
  return std::log(sum);
}

TEST_F(Attention, MatchesTheDefinition) {
  for (const AttentionSize& size : awkward_sizes()) {
    AttentionCase c(size, DType::f64);
    c.forward(ctx);
    std::vector<double> expected;
    for (Dim b = 0; b < size.B; ++b) {
      for (Dim h = 0; h < size.layout.heads; ++h) {
        for (Dim t = 0; t < size.T; ++t) {
          const double log_sum = attend_by_definition(c, b, h, t, expected);
          const Dim row = (b * size.layout.heads + h) * size.T + t;
          ASSERT_NEAR(c.log_sum_exp.view().data<double>()[row], log_sum, 1e-11);
          for (Dim d = 0; d < size.layout.head_width; ++d) {
            ASSERT_NEAR(at(c.out, b, t, h * size.layout.head_width + d), expected[d], 1e-11);
          }
        }
      }
    }
  }
}

TEST_F(Attention, RecomputingPathEqualsReferencePath) {
  for (const AttentionSize& size : awkward_sizes()) {
    AttentionCase fused(size, DType::f64);
    AttentionCase reference(size, DType::f64);

    fused.forward(ctx);
    fused.backward(ctx);
    reference.reference_forward(ctx);
    reference.reference_backward(ctx);

    expect_matches_oracle(fused.out.view(), reference.out.view(), "out");
    expect_matches_oracle(fused.dqkv.view(), reference.dqkv.view(), "dqkv");
  }
}

TEST_F(Attention, FloatMatchesTheOracleAndRepeatsItsBits) {
  for (const AttentionSize& size : awkward_sizes()) {
    AttentionCase oracle(size, DType::f64);
    AttentionCase single(size, DType::f32);
    AttentionCase again(size, DType::f32);
    AttentionCase reference(size, DType::f32);
    oracle.forward(ctx);
    oracle.backward(ctx);
    for (AttentionCase* c : {&single, &again}) {
      c->forward(ctx);
      c->backward(ctx);
    }
    reference.reference_forward(ctx);
    reference.reference_backward(ctx);

    expect_matches_oracle(single.out.view(), oracle.out.view(), "out");
    expect_matches_oracle(single.log_sum_exp.view(), oracle.log_sum_exp.view(), "log_sum_exp");
    expect_matches_oracle(single.dqkv.view(), oracle.dqkv.view(), "dqkv");
    expect_matches_oracle(reference.out.view(), oracle.out.view(), "reference out");
    expect_matches_oracle(reference.dqkv.view(), oracle.dqkv.view(), "reference dqkv");
    EXPECT_TRUE(same_bits(single.out.view(), again.out.view()));
    EXPECT_TRUE(same_bits(single.dqkv.view(), again.dqkv.view()));
  }
}

TEST_F(Attention, TheFutureChangesNothing) {
  const AttentionSize size = {1, 70, {4, 2, 16}};
  const Dim cut = 37;
  AttentionCase before(size, DType::f32);
  AttentionCase after(size, DType::f32);
  const Dim width = size.layout.packed_width();
  for (Dim i = cut * width; i < size.T * width; ++i) after.qkv.view().data<float>()[i] = 1e3F;
  for (const bool reference : {false, true}) {
    for (AttentionCase* c : {&before, &after}) {
      reference ? c->reference_forward(ctx) : c->forward(ctx);
    }

    const View past = before.out.view().reshaped({size.T, 64}).slice(0, cut);
    EXPECT_TRUE(same_bits(past, after.out.view().reshaped({size.T, 64}).slice(0, cut)));
    EXPECT_FALSE(same_bits(before.out.view(), after.out.view()));
  }
}

TEST_F(Attention, WithoutAMaskTheFutureCounts) {
  AttentionSize size = {1, 70, {4, 2, 16}};
  const Dim cut = 37;
  size.mask = kNoMask;
  AttentionCase before(size, DType::f32);
  AttentionCase after(size, DType::f32);
  after.qkv.view().data<float>()[size.packed().numel() - 1] += 1;  // the last value
  for (const bool reference : {false, true}) {
    for (AttentionCase* c : {&before, &after}) {
      reference ? c->reference_forward(ctx) : c->forward(ctx);
    }

    const View past = before.out.view().reshaped({size.T, 64}).slice(0, cut);
    EXPECT_FALSE(same_bits(past, after.out.view().reshaped({size.T, 64}).slice(0, cut)));
  }
}

TEST_F(Attention, DocumentsInOneSampleAreAsApart) {
  const HeadLayout layout = {4, 2, 16};
  AttentionSize packed = {1, 75, layout};
  packed.document = 25;
  AttentionCase together(packed, DType::f64);
  together.forward(ctx);
  together.backward(ctx);
  AttentionCase apart({3, 25, layout}, DType::f64);
  cast(ctx, together.qkv.view().reshaped(apart.size.packed()), apart.qkv.view());
  cast(ctx, together.dout.view().reshaped(apart.size.out()), apart.dout.view());

  apart.forward(ctx);
  apart.backward(ctx);

  expect_matches_oracle(together.out.view().flat(), apart.out.view().flat(), "out");
  expect_matches_oracle(together.dqkv.view().flat(), apart.dqkv.view().flat(), "dqkv");
}

TEST_F(Attention, PackedDocumentsAreAsAloneAndPaddingReachesNone) {
  const HeadLayout layout = {4, 2, 16};
  const std::vector<Dim> begins = {0, 31, 48, 49, 60};  // the last is padding
  constexpr Dim kT = 75;
  AttentionCase together({1, kT, layout}, DType::f64);
  together.first_keys = Tensor(Device::cpu, DType::i32, {1, kT});
  const auto first = together.first_keys.view().span<std::int32_t>();
  for (const Dim begin : begins) {
    std::ranges::fill(first.subspan(static_cast<std::size_t>(begin)),
                      static_cast<std::int32_t>(begin));
  }
  together.size.document = kT;  // reads first_keys
  together.forward(ctx);
  together.backward(ctx);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const Dim length = (i + 1 < begins.size() ? begins[i + 1] : kT) - begins[i];
    const auto rows = [&](Tensor& all) {
      const View view = all.view();
      return view.reshaped({kT, view.numel() / kT}).slice(begins[i], length);
    };
    AttentionCase alone({1, length, layout}, DType::f64);
    cast(ctx, rows(together.qkv).reshaped(alone.size.packed()), alone.qkv.view());
    cast(ctx, rows(together.dout).reshaped(alone.size.out()), alone.dout.view());

    alone.forward(ctx);
    alone.backward(ctx);

    expect_matches_oracle(rows(together.out).flat(), alone.out.view().flat(), "out");
    expect_matches_oracle(rows(together.dqkv).flat(), alone.dqkv.view().flat(), "dqkv");
  }
}

TEST_F(Attention, UnknownMasksAreRefusedByName) {
  AttentionSize size = {1, 5, {2, 1, 8}};
  size.mask.kind = static_cast<AttentionMask::Kind>(7);
  AttentionCase c(size, DType::f32);
  expect_error_naming("attention_forward mask: expected causal or none, found kind 7",
                      [&] { c.forward(ctx); });
  expect_error_naming("attention_backward mask", [&] { c.backward(ctx); });
  expect_error_naming("attention_reference_forward mask", [&] { c.reference_forward(ctx); });
  expect_error_naming("attention_reference_backward mask", [&] { c.reference_backward(ctx); });
  AttentionSize windowed = {1, 5, {2, 1, 8}, kNoMask};
  windowed.mask.window = 3;
  AttentionCase encoder(windowed, DType::f32);
  expect_error_naming("0 without a causal mask, found 3", [&] { encoder.forward(ctx); });
  EXPECT_EQ(name_of(AttentionMask::Kind::causal), "causal");
  EXPECT_EQ(name_of(AttentionMask::Kind::none), "none");
}

TEST_F(Attention, LargeScoresDoNotOverflow) {
  const AttentionSize size = {1, 40, {1, 1, 8}};
  AttentionCase single(size, DType::f32);
  for (float& v : single.qkv.view().span<float>()) v *= 30;
  AttentionCase oracle(size, DType::f64);
  oracle.qkv = converted(single.qkv.view(), DType::f64);

  single.forward(ctx);
  single.backward(ctx);
  oracle.forward(ctx);
  oracle.backward(ctx);

  expect_matches_oracle(single.out.view(), oracle.out.view(), "out", 10);
  expect_matches_oracle(single.dqkv.view(), oracle.dqkv.view(), "dqkv", 50);
}

TEST_F(Attention, ProbabilitiesAreKeptBeforeDropout) {
  const AttentionSize size = {2, 21, {2, 1, 8}};
  AttentionCase plain(size, DType::f64);
  AttentionCase dropped(size, DType::f64);
  const StepState state = {.input = {.step = 3}};
  const Tensor position = tensor_of(DType::i64, {2}, {4, 9});

  plain.reference_forward(ctx);
  dropped.reference_forward(ctx, {0.5F, 1, 2, position.view(), &state});

  EXPECT_TRUE(same_bits(plain.probabilities.view(), dropped.probabilities.view()));
  EXPECT_FALSE(same_bits(plain.out.view(), dropped.out.view()));
}

TEST_F(Attention, DropoutActsOnProbabilitiesByGlobalIndex) {
  const AttentionSize size = {2, 67, {2, 1, 4}};
  const Dim T = size.T;
  AttentionCase c(size, DType::f64);
  const StepState state = {.input = {.step = 3}};
  const Tensor position = tensor_of(DType::i64, {2}, {4, 9});
  const Dropout spec = {0.5F, 1, 2, position.view(), &state};
  c.reference_forward(ctx, spec);
  // The public op drops (B, H, T, T) by the same global index: position * (H T T) + (h T + i) T +
  // j.
  Tensor masked = poisoned(DType::f64, size.square());
  dropout(ctx, spec, c.probabilities.view(), masked.view());

  for (Dim b = 0; b < 2; ++b) {
    for (Dim h = 0; h < 2; ++h) {
      for (Dim i = 0; i < T; ++i) {
        const double* row = masked.view().data<double>() + ((b * 2 + h) * T + i) * T;
        for (Dim d = 0; d < 4; ++d) {
          double expected = 0;
          for (Dim j = 0; j < T; ++j) expected += row[j] * at(c.qkv, b, j, 12 + d);
          ASSERT_NEAR(at(c.out, b, i, h * 4 + d), expected, 1e-11);
        }
      }
    }
  }
}

TEST_F(Attention, TheGradientOfTheBiasIsTheColumnSumsOfDqkv) {
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    for (const AttentionSize& size : awkward_sizes()) {
      AttentionCase c(size, DType::f64);
      c.forward(ctx);
      Tensor dbias = filled_tensor(DType::f64, {size.layout.packed_width()}, 0.5);

      attention_backward(ctx, size.layout, c.scores(), c.dout.view(),
                         {c.qkv.view(), c.out.view(), c.log_sum_exp.view()},
                         {c.dqkv.view(), dbias.view(), accumulate});

      const auto dqkv = to_doubles(c.dqkv.view());
      const auto found = to_doubles(dbias.view());
      for (std::size_t column = 0; column < found.size(); ++column) {
        double sum = accumulate == Accumulate::yes ? 0.5 : 0.0;
        for (std::size_t i = column; i < dqkv.size(); i += found.size()) sum += dqkv[i];
        ASSERT_NEAR(found[column], sum, 1e-12 * static_cast<double>(size.B * size.T + 1));
      }
    }
  }
}

TEST_F(Attention, WrongOperandsAreNamed) {
  AttentionCase c({1, 5, {4, 2, 8}}, DType::f32);
  Tensor narrow = filled_tensor(DType::f32, {31}, 0);
  expect_error_naming("attention_backward dbias", [&] {
    attention_backward(ctx, c.size.layout, kCausal, c.dout.view(),
                       {c.qkv.view(), c.out.view(), c.log_sum_exp.view()},
                       {c.dqkv.view(), narrow.view()});
  });
  const HeadLayout other = {4, 4, 8};
  expect_error_naming("attention_forward qkv", [&] {
    attention_forward(ctx, other, kCausal, c.qkv.view(), c.out.view(), c.log_sum_exp.view());
  });
  expect_error_naming("attention_forward out", [&] {
    attention_forward(ctx, c.size.layout, kCausal, c.qkv.view(), c.qkv.view(),
                      c.log_sum_exp.view());
  });
  expect_error_naming("attention_backward dout", [&] {
    attention_backward(ctx, c.size.layout, kCausal, c.qkv.view(),
                       {c.qkv.view(), c.out.view(), c.log_sum_exp.view()}, {c.dqkv.view()});
  });
  expect_error_naming("attention_reference_forward probabilities", [&] {
    attention_reference_forward(ctx, c.size.layout, kCausal, c.qkv.view(), {}, c.out.view(),
                                c.out.view());
  });
  expect_error_naming("attention_reference_backward dqkv", [&] {
    attention_reference_backward(ctx, c.size.layout, kCausal, c.dout.view(),
                                 {c.qkv.view(), c.probabilities.view()}, c.dprobabilities.view(),
                                 c.out.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
