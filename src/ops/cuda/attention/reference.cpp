// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "backend.hpp"
#include "cuda/products/gemm.hpp"
#include "cuda/tools/library_workspace.hpp"
#include "hyperslab/ops/component.hpp"
#include "softmax.hpp"

namespace hyperslab::ops::cuda {
namespace {

/// One matrix per query head inside a tensor: where it is for sample b, key-value head j and member
/// g of j's group is b * sample + j * group + g * member elements from the start.
struct Heads {
  CView tensor;
  Dim first, ld;
  Dim sample, group, member;

  [[nodiscard]] void* at(Dim elements) const {
    const auto base = reinterpret_cast<std::uintptr_t>(tensor.raw());
    return reinterpret_cast<void*>(base + static_cast<std::size_t>(first + elements) *
                                              size_of(tensor.dtype()));
  }
};

/// Views of some samples as matrices per head.
struct Problem {
  HeadLayout layout;
  Dim B, T;

  [[nodiscard]] Dim group() const { return layout.heads / layout.kv_heads; }
  [[nodiscard]] Heads queries(CView packed) const {
    const Dim D = layout.head_width;
    const Dim row = layout.packed_width();
    return {packed, 0, row, T * row, group() * D, D};
  }
  [[nodiscard]] Heads keys(CView packed) const {
    const Dim D = layout.head_width;
    const Dim row = layout.packed_width();
    return {packed, layout.heads * D, row, T * row, D, 0};
  }
  [[nodiscard]] Heads values(CView packed) const {
    Heads heads = keys(packed);
    heads.first += layout.kv_heads * layout.head_width;
    return heads;
  }
  [[nodiscard]] Heads outputs(CView out) const {
    const Dim D = layout.head_width;
    const Dim row = layout.heads * D;
    return {out, 0, row, T * row, group() * D, D};
  }
  [[nodiscard]] Heads squares(CView square) const {
    return {square, 0, T, layout.heads * T * T, group() * T * T, T * T};
  }
};

/// Sizes of the GEMM of one head, c (M, N) = alpha op(a) op(b).
struct Step {
  const char* op;
  Component part;
  Dim M, N, K;
  Trans trans_a, trans_b;
  float alpha = 1;
  bool sum_group = false;  ///< the heads of a group are added into one c, always in one order
};

/// The GEMM of every head: one call per member of a group and sample or key-value head,
/// whichever are fewer.
void each_head(Context& ctx, const Problem& problem, const Step& step, const Heads& a,
               const Heads& b, const Heads& c) {
  const Scope scope(ctx.recorder(), step.part);
  const bool samples_at_once = problem.B >= problem.layout.kv_heads;
  const Dim calls = samples_at_once ? problem.layout.kv_heads : problem.B;
  Gemm p;
  p.op = step.op;
  p.M = step.M;
  p.N = step.N;
  p.K = step.K;
  p.in = a.tensor.dtype();
  p.out = c.tensor.dtype();
  p.alpha = step.alpha;
  p.batch = static_cast<int>(samples_at_once ? problem.B : problem.layout.kv_heads);
  p.ldc = c.ld;
  p.stride_c = samples_at_once ? c.sample : c.group;
  for (Dim i = 0; i < calls; ++i) {
    for (Dim g = 0; g < problem.group(); ++g) {
      const auto operand = [&](const Heads& heads, Trans trans) {
        const Dim outer = i * (samples_at_once ? heads.group : heads.sample);
        return Operand{heads.at(outer + g * heads.member), heads.ld, trans,
                       samples_at_once ? heads.sample : heads.group};
      };
      p.a = operand(a, step.trans_a);
      p.b = operand(b, step.trans_b);
      p.c = c.at(i * (samples_at_once ? c.group : c.sample) + g * c.member);
      p.accumulate = step.sum_group && g > 0;
      (void)multiply(ctx, p);
    }
  }
}

/// Samples that are done together, and scratch memory of squares.
struct Chunk {
  Problem problem;
  Dim first;
  Dropout dropout;
  SoftmaxRows rows;
  View dropped;  ///< dropped probabilities; absent without dropout
  View scores;   ///< scores before they are capped; absent if they are not

  [[nodiscard]] View of(View tensor) const { return tensor.slice(first, problem.B); }
  [[nodiscard]] CView of(CView tensor) const { return tensor.slice(first, problem.B); }
};

/// Calls body(chunk) for all samples at once, or, if dropout acts or scores are capped, one by one:
/// scratch memory holds squares of one sample.
template <class Body>
void each_chunk(Context& ctx, const char* op, const Problem& all, const AttentionScores& scores,
                const Dropout& dropout, DType dtype, Body&& body) {
  const SoftmaxRows rows = {scores.mask, scores.first_keys, static_cast<float>(scores.softcap),
                            scores.sinks};
  const bool caps = scores.softcap > 0;
  const std::size_t bytes =
      attention_reference_workspace(all.layout, all.T, dtype, dropout.active(), caps);
  if (bytes == 0) return body(Chunk{all, 0, dropout, rows, {}, {}});
  auto* scratch = static_cast<std::byte*>(ctx.workspace(op, bytes));
  const auto take_square = [&] {
    const View square(scratch, dtype, Device::cuda, {1, all.layout.heads, all.T, all.T});
    scratch += square.bytes();
    return square;
  };
  const View dropped = dropout.active() ? take_square() : View();
  const View uncapped = caps ? take_square() : View();
  for (Dim b = 0; b < all.B; ++b) {
    Dropout part = dropout;
    if (dropout.active()) part.sample_position = dropout.sample_position.slice(b, 1);
    SoftmaxRows here = rows;
    if (rows.first_keys) here.first_keys = rows.first_keys.slice(b, 1);
    if (rows.sinks.weights) here.sinks.weights = rows.sinks.weights.slice(b, 1);
    body(Chunk{{all.layout, 1, all.T}, b, part, here, dropped, uncapped});
  }
}

}  // namespace

void attention_reference_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, const Dropout& dropout,
                                 View out, View probabilities) {
  constexpr const char* kOp = "attention_reference_forward";
  const Problem all = {layout, qkv.shape()[0], qkv.shape()[1]};
  const Dim T = all.T;
  const Dim D = layout.head_width;
  if (all.B == 0 || T == 0) return;
  const auto scale = static_cast<float>(scores.scale_of(layout));
  each_chunk(ctx, kOp, all, scores, dropout, qkv.dtype(), [&](const Chunk& chunk) {
    const Problem& part = chunk.problem;
    const CView packed = chunk.of(qkv);
    const View square = chunk.of(probabilities);
    // Scaled before they are rounded: unscaled ones may not fit f16.
    each_head(ctx, part, {kOp, kScoresComponent, T, T, D, Trans::no, Trans::yes, scale},
              part.queries(packed), part.keys(packed), part.squares(square));
    {
      const Scope scope(ctx.recorder(), kSoftmaxComponent);
      masked_softmax_forward(ctx, chunk.rows, chunk.dropout, square, chunk.dropped);
    }
    each_head(ctx, part, {kOp, kValuesComponent, T, D, T, Trans::no, Trans::no},
              part.squares(chunk.dropped ? chunk.dropped : square), part.values(packed),
              part.outputs(chunk.of(out)));
  });
}

void attention_reference_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionReferenceSaved& saved, View dprobabilities,
                                  View dqkv) {
  const CView qkv = saved.qkv;
  constexpr const char* kOp = "attention_reference_backward";
  const Problem all = {layout, qkv.shape()[0], qkv.shape()[1]};
  const Dim T = all.T;
  const Dim D = layout.head_width;
  if (all.B == 0 || T == 0) return;
  const auto scale = static_cast<float>(scores.scale_of(layout));
  each_chunk(ctx, kOp, all, scores, saved.dropout, qkv.dtype(), [&](const Chunk& chunk) {
    const Problem& part = chunk.problem;
    const CView packed = chunk.of(qkv);
    const CView gradient = chunk.of(dout);
    const CView kept = chunk.of(saved.probabilities);
    const View square = chunk.of(dprobabilities);
    const View result = chunk.of(dqkv);
    each_head(ctx, part, {kOp, kValuesComponent, T, T, D, Trans::no, Trans::yes},
              part.outputs(gradient), part.values(packed), part.squares(square));
    if (chunk.scores) {
      each_head(ctx, part, {kOp, kScoresComponent, T, T, D, Trans::no, Trans::yes, scale},
                part.queries(packed), part.keys(packed), part.squares(chunk.scores));
    }
    {
      const Scope scope(ctx.recorder(), kSoftmaxComponent);
      masked_softmax_backward(ctx, chunk.rows, scale, chunk.dropout, {kept, chunk.scores}, square,
                              chunk.dropped);
    }
    each_head(ctx, part, {kOp, kValuesComponent, T, D, T, Trans::yes, Trans::no, 1, true},
              part.squares(chunk.dropped ? CView(chunk.dropped) : kept), part.outputs(gradient),
              part.values(result));
    each_head(ctx, part, {kOp, kScoresComponent, T, D, T, Trans::no, Trans::no},
              part.squares(square), part.keys(packed), part.queries(result));
    each_head(ctx, part, {kOp, kScoresComponent, T, D, T, Trans::yes, Trans::no, 1, true},
              part.squares(square), part.queries(packed), part.keys(result));
  });
}

}  // namespace hyperslab::ops::cuda
