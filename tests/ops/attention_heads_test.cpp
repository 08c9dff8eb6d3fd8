// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include "attention_case.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

/// Heads over ranks: every rank computes its own and finds what one rank with all of them finds.
class AttentionHeads : public OpsTest {};

/// What one rank of `ranks` has. Where ranks outnumber key-value heads, several have the same one.
struct Part {
  HeadLayout layout;
  Dim first_head;
  Dim first_kv;
};
Part part_of(const HeadLayout& all, Dim ranks, Dim rank) {
  const Dim heads = all.heads / ranks;
  const Dim kv = std::max<Dim>(1, all.kv_heads / ranks);
  const Dim first = rank * heads;
  return {{heads, kv, all.head_width}, first, first / (all.heads / all.kv_heads)};
}

/// Copies columns [from, from + count) of each row of `source` to columns [to, ...) of `target`.
void copy_columns(CView source, Dim from, Dim count, View target, Dim to) {
  const Dim rows = source.rows();
  for (Dim row = 0; row < rows; ++row) {
    std::copy_n(source.data<double>() + row * source.shape().back() + from, count,
                target.data<double>() + row * target.shape().back() + to);
  }
}

/// The rank's columns of packed queries, keys and values.
Tensor packed_part(CView all, const HeadLayout& layout, const Part& part) {
  const Dim D = layout.head_width;
  const HeadLayout& here = part.layout;
  Tensor out = poisoned(DType::f64, {all.shape()[0], all.shape()[1], here.packed_width()});
  copy_columns(all, part.first_head * D, here.heads * D, out.view(), 0);
  for (const Dim which : {0, 1}) {
    copy_columns(all, (layout.heads + which * layout.kv_heads + part.first_kv) * D,
                 here.kv_heads * D, out.view(), (here.heads + which * here.kv_heads) * D);
  }
  return out;
}

Tensor columns_of(CView all, Dim first, Dim count) {
  Tensor out = poisoned(DType::f64, {all.shape()[0], all.shape()[1], count});
  copy_columns(all, first, count, out.view(), 0);
  return out;
}

struct Split {
  AttentionSize size;
  Dim ranks;
};
const std::vector<Split> kSplits = {{{2, 33, {4, 2, 16}}, 2},
                                    {{1, 67, {6, 3, 5}}, 3},
                                    {{2, 21, {4, 4, 8}}, 4},
                                    {{2, 19, {4, 1, 8}}, 2},
                                    {{1, 40, {8, 2, 4}}, 8}};

using Run = std::function<void(AttentionCase&, Dim first_head, Dim total_heads)>;

/// Runs all heads at once and rank by rank; the sum of the ranks' gradients of shared keys and
/// values is that of all heads.
void expect_equal_parts(const Split& split, const Run& run) {
  const auto& [size, ranks] = split;
  const Dim D = size.layout.head_width;
  AttentionCase all(size, DType::f64);
  run(all, 0, 0);
  Tensor sum = filled_tensor(DType::f64, size.packed(), 0);
  for (Dim rank = 0; rank < ranks; ++rank) {
    const Part part = part_of(size.layout, ranks, rank);
    AttentionCase here({size.B, size.T, part.layout}, DType::f64);
    here.qkv = packed_part(all.qkv.view(), size.layout, part);
    here.dout = columns_of(all.dout.view(), part.first_head * D, part.layout.heads * D);
    run(here, part.first_head, size.layout.heads);

    const Tensor out = columns_of(all.out.view(), part.first_head * D, part.layout.heads * D);
    expect_close(here.out.view(), out.view(), "out of rank " + std::to_string(rank));
    const CView found = here.dqkv.view();
    for (Dim row = 0; row < found.rows(); ++row) {
      const auto add = [&](Dim from, Dim count, Dim to) {
        const double* source = found.data<double>() + row * found.shape().back() + from;
        double* target = sum.view().data<double>() + row * size.layout.packed_width() + to;
        for (Dim i = 0; i < count; ++i) target[i] += source[i];
      };
      add(0, part.layout.heads * D, part.first_head * D);
      for (const Dim which : {0, 1}) {
        add((part.layout.heads + which * part.layout.kv_heads) * D, part.layout.kv_heads * D,
            (size.layout.heads + which * size.layout.kv_heads + part.first_kv) * D);
      }
    }
  }
  expect_close(sum.view(), all.dqkv.view(), "dqkv");
}

TEST_F(AttentionHeads, RecomputingPath) {
  for (const Split& split : kSplits) {
    expect_equal_parts(split, [&](AttentionCase& c, Dim, Dim) {
      c.forward(ctx);
      c.backward(ctx);
    });
  }
}

TEST_F(AttentionHeads, ReferencePathDrawsTheMaskOfTheGlobalHead) {
  const StepState state = {.input = {.step = 3}};
  const Tensor position = tensor_of(DType::i64, {2}, {4, 900});
  for (const Split& split : kSplits) {
    expect_equal_parts(split, [&](AttentionCase& c, Dim first_head, Dim total_heads) {
      Dropout dropout = {0.4F, 1, 2, position.view().slice(0, c.size.B), &state};
      dropout.first_head = first_head;
      dropout.total_heads = total_heads;
      c.reference_forward(ctx, dropout);
      c.reference_backward(ctx, dropout);
    });
  }
}

TEST_F(AttentionHeads, RopeOfLocalHeads) {
  for (const Split& split : kSplits) {
    const auto& [size, ranks] = split;
    if (size.layout.head_width % 2 != 0) continue;
    const Shape table = {size.T, size.layout.head_width / 2};
    Tensor cosines = poisoned(DType::f64, table);
    Tensor sines = poisoned(DType::f64, table);
    rope_table(ctx, rope_frequencies(100, table[1]), 1, cosines.view(), sines.view());
    const Tensor qkv = random_tensor(DType::f64, size.packed(), 1);
    Tensor rotated = qkv.clone();
    rope(ctx, size.layout, cosines.view(), sines.view(), 0, Rotation::forward, rotated.view());

    for (Dim rank = 0; rank < ranks; ++rank) {
      const Part part = part_of(size.layout, ranks, rank);
      Tensor here = packed_part(qkv.view(), size.layout, part);
      rope(ctx, part.layout, cosines.view(), sines.view(), 0, Rotation::forward, here.view());
      EXPECT_TRUE(same_bits(here.view(), packed_part(rotated.view(), size.layout, part).view()));
    }
  }
}

TEST_F(AttentionHeads, HeadsBeyondTheLastAreRefused) {
  const StepState state;
  const Tensor position = tensor_of(DType::i64, {1}, {0});
  AttentionCase c({1, 5, {2, 1, 4}}, DType::f32);
  Dropout dropout = {0.4F, 1, 2, position.view(), &state};
  dropout.first_head = 3;
  dropout.total_heads = 4;
  expect_error_naming("dropout first_head", [&] { c.reference_forward(ctx, dropout); });
  expect_error_naming("dropout first_head", [&] { c.reference_backward(ctx, dropout); });
}

}  // namespace
}  // namespace hyperslab::ops
