// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "../backend.hpp"
#include "../checks.hpp"
#include "../dropout_checks.hpp"
#include "attention_pack.hpp"
#include "dropout_mask.hpp"
#include "gemm.hpp"
#include "hyperslab/ops/component.hpp"
#include "math.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kProbabilityRows = 64;  // rows of dropped probabilities that are remade at once

/// The softmax of `seen` scores, and of a sink unless that is null, in place. Returns the sink's
/// weight.
template <class T>
T softmax_row(T* row, Dim seen, const T* sink) {
  T top = sink != nullptr ? *sink : -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : top)
  for (Dim j = 0; j < seen; ++j) top = row[j] > top ? row[j] : top;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Dim j = 0; j < seen; ++j) {
    row[j] = exponential(row[j] - top);
    sum += row[j];
  }
  const T of_sink = sink != nullptr ? exponential(*sink - top) : T(0);
  const T inverse = T(1) / (sum + of_sink);
#pragma omp simd
  for (Dim j = 0; j < seen; ++j) row[j] *= inverse;
  return of_sink * inverse;
}

/// One query head of one sample: its columns in the packed matrices and its square of scores.
template <class T>
struct Head {
  Dim tokens, width, packed, out_row;
  const T *q, *k, *v;
  std::uint64_t first;  // global index of its first probability
  const Dropout* dropout;
  ScoreMap<T> map;
  SeenKeys seen;
  HeadSink<T> sink;
};

template <class T>
Head<T> head_of(const HeadLayout& layout, const AttentionScores& scores, CView qkv,
                const Dropout& dropout, Dim b, Dim h) {
  const Dim tokens = qkv.shape()[1];
  const Dim D = layout.head_width;
  const Dim kv = h / (layout.heads / layout.kv_heads);
  const T* sample = qkv.data<T>() + b * tokens * layout.packed_width();
  const T* keys = sample + layout.heads * D;
  const std::int64_t position =
      dropout.active() ? dropout.sample_position.data<std::int64_t>()[b] : 0;
  const Dim first =
      (position * mask_heads(dropout, layout.heads) + dropout.first_head + h) * tokens * tokens;
  return {tokens,
          D,
          layout.packed_width(),
          layout.heads * D,
          sample + h * D,
          keys + kv * D,
          keys + (layout.kv_heads + kv) * D,
          static_cast<std::uint64_t>(first),
          &dropout,
          {scores, layout},
          seen_keys(scores, b, tokens, 0, tokens),
          {scores.sinks, layout, b, h, tokens}};
}

/// Rows [row, row + count) of the dropped probabilities: remade in scratch, or the kept ones.
template <class T>
const T* dropped_rows(const Head<T>& head, const T* probabilities, Dim row, Dim count, T* scratch) {
  const T* rows = probabilities + row * head.tokens;
  if (!head.dropout->active()) return rows;
  apply_dropout(*head.dropout, head.first + static_cast<std::uint64_t>(row * head.tokens),
                count * head.tokens, rows, scratch);
  return scratch;
}

/// Products of `rows` queries from `first` on and all keys: scaled, or, if they are to be capped,
/// as they are.
template <class T>
void head_scores(const Head<T>& head, Dim first, Dim rows, T* scores) {
  const T alpha = head.map.softcap > T(0) ? T(1) : head.map.scale;
  gemm<T>({rows, head.tokens, head.width}, alpha, {head.q + first * head.packed, head.packed},
          {head.k, head.packed, Trans::yes}, {scores, head.tokens, T(0)});
}

/// Probability zero for the keys that a query does not see.
template <class T>
void head_mask(const Head<T>& head, T* scores) {
  for (Dim i = 0; i < head.tokens; ++i) {
    T* row = scores + i * head.tokens;
    std::fill(row, row + head.seen.begin(i), T(0));
    std::fill(row + head.seen.end(i), row + head.tokens, T(0));
  }
}

template <class T>
void head_softmax(const Head<T>& head, T* scores) {
  for (Dim i = 0; i < head.tokens; ++i) {
    const Dim begin = head.seen.begin(i);
    const Dim seen = head.seen.end(i) - begin;
    T* row = scores + i * head.tokens + begin;
    if (head.map.softcap > T(0)) head.map.cap(row, seen);
    const T of_sink = softmax_row(row, seen, head.sink.logit);
    if (head.sink.weights != nullptr) head.sink.weights[i] = of_sink;
  }
}

template <class T>
void head_values(const Head<T>& head, const T* probabilities, T* out, T* scratch) {
  const Dim tokens = head.tokens;
  for (Dim row = 0; row < tokens; row += kProbabilityRows) {
    const Dim count = std::min(kProbabilityRows, tokens - row);
    const T* dropped = dropped_rows(head, probabilities, row, count, scratch);
    gemm<T>({count, head.width, tokens}, T(1), {dropped, tokens}, {head.v, head.packed},
            {out + row * head.out_row, head.out_row, T(0)});
  }
}

/// dprobabilities of row i become dscores.
template <class T>
void softmax_gradient(const T* probabilities, T* row, Dim tokens, T scale) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (Dim j = 0; j < tokens; ++j) dot += probabilities[j] * row[j];
#pragma omp simd
  for (Dim j = 0; j < tokens; ++j) row[j] = probabilities[j] * (row[j] - dot) * scale;
}

/// The destinations of the gradients of one query head; `first_of_group` overwrites dk and dv.
template <class T>
struct HeadGradient {
  const T* dout;
  T *dscores, *dq, *dk, *dv;
  bool first_of_group;
};

/// The gradients of query head `i`, counted over all samples.
template <class T>
HeadGradient<T> gradient_of(const HeadLayout& layout, CView dout, View dprobabilities, View dqkv,
                            Dim i) {
  const Dim tokens = dqkv.shape()[1];
  const Dim D = layout.head_width;
  const Dim group = layout.heads / layout.kv_heads;
  const Dim b = i / layout.heads;
  const Dim h = i % layout.heads;
  T* sample = dqkv.data<T>() + b * tokens * layout.packed_width();
  T* dk = sample + (layout.heads + h / group) * D;
  return {dout.data<T>() + (b * tokens * layout.heads + h) * D,
          dprobabilities.data<T>() + i * tokens * tokens,
          sample + h * D,
          dk,
          dk + layout.kv_heads * D,
          h % group == 0};
}

/// dv, and the gradient of the probabilities.
template <class T>
void head_values_gradient(const Head<T>& head, const T* probabilities, const HeadGradient<T>& g,
                          T* scratch) {
  const Dim tokens = head.tokens;
  const Dim D = head.width;
  for (Dim row = 0; row < tokens; row += kProbabilityRows) {
    const Dim count = std::min(kProbabilityRows, tokens - row);
    const T* dropped = dropped_rows(head, probabilities, row, count, scratch);
    const T beta = g.first_of_group && row == 0 ? T(0) : T(1);
    gemm<T>({tokens, D, count}, T(1), {dropped, tokens, Trans::yes},
            {g.dout + row * head.out_row, head.out_row}, {g.dv, head.packed, beta});
  }
  gemm<T>({tokens, tokens, D}, T(1), {g.dout, head.out_row}, {head.v, head.packed, Trans::yes},
          {g.dscores, tokens, T(0)});
}

/// dscores of capped scores become gradients of the scores before the cap, which are computed again
/// in scratch.
template <class T>
void cap_gradient(const Head<T>& head, const HeadGradient<T>& g, T* scratch) {
  const Dim tokens = head.tokens;
  for (Dim row = 0; row < tokens; row += kProbabilityRows) {
    const Dim count = std::min(kProbabilityRows, tokens - row) * tokens;
    head_scores(head, row, count / tokens, scratch);
    head.map.cap(scratch, count);
    T* dscores = g.dscores + row * tokens;
    for (Dim j = 0; j < count; ++j) dscores[j] *= head.map.slope(scratch[j]);
  }
}

template <class T>
void head_softmax_gradient(const Head<T>& head, const T* probabilities, const HeadGradient<T>& g,
                           T* scratch) {
  const Dim tokens = head.tokens;
  if (head.dropout->active()) {
    apply_dropout(*head.dropout, head.first, tokens * tokens, g.dscores, g.dscores);
  }
  for (Dim i = 0; i < tokens; ++i) {
    softmax_gradient(probabilities + i * tokens, g.dscores + i * tokens, tokens, head.map.scale);
  }
  if (head.map.softcap > T(0)) cap_gradient(head, g, scratch);
}

/// dq and dk.
template <class T>
void head_scores_gradient(const Head<T>& head, const HeadGradient<T>& g) {
  const Dim tokens = head.tokens;
  const Dim D = head.width;
  gemm<T>({tokens, D, tokens}, T(1), {g.dscores, tokens}, {head.k, head.packed},
          {g.dq, head.packed, T(0)});
  gemm<T>({tokens, D, tokens}, T(1), {g.dscores, tokens, Trans::yes}, {head.q, head.packed},
          {g.dk, head.packed, g.first_of_group ? T(0) : T(1)});
}

}  // namespace

std::size_t attention_reference_workspace(int threads, Dim keys, DType dtype) {
  return static_cast<std::size_t>(threads * kProbabilityRows * keys) *
         size_of(statistic_dtype(dtype));
}

void attention_reference_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, const Dropout& dropout,
                                 View out, View probabilities) {
  with_real(qkv.dtype(), "attention_reference_forward", [&]<class T>(T) {
    const Dim tokens = qkv.shape()[1];
    const Dim H = layout.heads;
    auto* base = static_cast<T*>(
        ctx.workspace("attention_reference_forward",
                      attention_reference_workspace(ctx.threads(), tokens, qkv.dtype())));
    // pass(head, its probabilities, which head of all, scratch)
    const auto each_head = [&](const Component& part, auto&& pass) {
      const Scope scope(ctx.recorder(), part);
      const auto heads = [&](int chunk, Dim begin, Dim end) {
        for (Dim i = begin; i < end; ++i) {
          pass(head_of<T>(layout, scores, qkv, dropout, i / H, i % H),
               probabilities.data<T>() + i * tokens * tokens, i,
               base + chunk * kProbabilityRows * tokens);
        }
      };
      parallel_chunks(ctx.threads(), qkv.shape()[0] * H, work_of_calls(tokens * tokens), heads);
    };
    each_head(kScoresComponent, [](const Head<T>& head, T* kept, Dim, T*) {
      head_scores(head, 0, head.tokens, kept);
    });
    if (scores.mask.kind != AttentionMask::Kind::none) {
      each_head(kMaskComponent,
                [](const Head<T>& head, T* kept, Dim, T*) { head_mask(head, kept); });
    }
    each_head(kSoftmaxComponent,
              [](const Head<T>& head, T* kept, Dim, T*) { head_softmax(head, kept); });
    each_head(kValuesComponent, [&](const Head<T>& head, T* kept, Dim i, T* scratch) {
      T* head_out = out.data<T>() + (i / H * tokens * H + i % H) * layout.head_width;
      head_values(head, kept, head_out, scratch);
    });
  });
}

void attention_reference_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionReferenceSaved& saved, View dprobabilities,
                                  View dqkv) {
  // Masked keys have probability zero, and so has their gradient.
  const CView qkv = saved.qkv;
  with_real(qkv.dtype(), "attention_reference_backward", [&]<class T>(T) {
    const Dim tokens = qkv.shape()[1];
    const Dim H = layout.heads;
    const Dim group = H / layout.kv_heads;
    auto* base = static_cast<T*>(
        ctx.workspace("attention_reference_backward",
                      attention_reference_workspace(ctx.threads(), tokens, qkv.dtype())));
    // pass(head, its probabilities, its gradients, scratch); a thread has whole groups
    const auto each_head = [&](const Component& part, auto&& pass) {
      const Scope scope(ctx.recorder(), part);
      const auto groups = [&](int chunk, Dim begin, Dim end) {
        for (Dim i = begin * group; i < end * group; ++i) {
          pass(head_of<T>(layout, scores, qkv, saved.dropout, i / H, i % H),
               saved.probabilities.data<T>() + i * tokens * tokens,
               gradient_of<T>(layout, dout, dprobabilities, dqkv, i),
               base + chunk * kProbabilityRows * tokens);
        }
      };
      parallel_chunks(ctx.threads(), qkv.shape()[0] * layout.kv_heads,
                      work_of_calls(tokens * tokens), groups);
    };
    using Gradient = HeadGradient<T>;
    each_head(kValuesComponent, [](const Head<T>& head, const T* kept, const Gradient& g,
                                   T* scratch) { head_values_gradient(head, kept, g, scratch); });
    each_head(kSoftmaxComponent, [](const Head<T>& head, const T* kept, const Gradient& g,
                                    T* scratch) { head_softmax_gradient(head, kept, g, scratch); });
    each_head(kScoresComponent, [](const Head<T>& head, const T*, const Gradient& g, T*) {
      head_scores_gradient(head, g);
    });
  });
}

}  // namespace hyperslab::ops::cpu
