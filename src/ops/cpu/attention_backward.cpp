// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../backend.hpp"
#include "../checks.hpp"
#include "attention_pack.hpp"
#include "math.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kKeyBlock = 128;  // keys of one block of scores, so that two blocks stay in L1

/// One thread's scratch memory. Per key-value head: keys and values transposed, keys as rows, and
/// the sums of dk and dv. Per block of queries: q, dout, dq as rows, two blocks of scores.
template <class T>
struct BackwardScratch {
  Dim width;        // a key's, rounded up to vectors
  Dim value_width;  // a value's
  Dim score_row;
  T *keys_transposed, *values_transposed, *keys, *dk, *dv;
  T *q, *dout, *dq, *scores, *dscores;
  Dim count;

  BackwardScratch(T* base, const HeadWidths& widths, Dim max_keys)
      : width(round_up(widths.key, kLanes<T>)),
        value_width(round_up(widths.value, kLanes<T>)),
        score_row(kKeyBlock + kLanes<T>) {
    Carver<T> carver(base);
    const Dim padded = round_up(max_keys, kPanel<T>);
    keys_transposed = carver.take(padded * widths.key);
    values_transposed = carver.take(padded * widths.value);
    keys = carver.take(max_keys * width);
    dk = carver.take(max_keys * width);
    dv = carver.take(max_keys * value_width);
    q = carver.take(kQueryBlock * width);
    dout = carver.take(kQueryBlock * value_width);
    dq = carver.take(kQueryBlock * width);
    scores = carver.take(kQueryBlock * score_row);
    dscores = carver.take(kQueryBlock * score_row);
    count = carver.used();
  }
};

/// One row of a block: its keys [begin, end) are seen, of `padded`.
struct RowRange {
  Dim begin, end, padded;
};

/// A row of scores becomes probabilities and a row of dprobabilities becomes dscores; keys that the
/// query does not see are zero in both.
template <class T>
void score_gradient(T* scores, T* dscores, const RowRange& range, T scale, T log_sum, T dot) {
  constexpr int kWidth = kLanes<T>;
  for (Dim j = range.begin; j < range.end; j += kWidth) {
    const int here = static_cast<int>(std::min<Dim>(kWidth, range.end - j));
#pragma omp simd
    for (int lane = 0; lane < kWidth; ++lane) {
      const T probability = exponential(scale * scores[j + lane] - log_sum);
      const T dscore = probability * (dscores[j + lane] - dot) * scale;
      scores[j + lane] = lane < here ? probability : T(0);
      dscores[j + lane] = lane < here ? dscore : T(0);
    }
  }
}

/// As score_gradient of scores that were capped already.
template <class T>
void capped_gradient(T* scores, T* dscores, const RowRange& range, const ScoreMap<T>& map,
                     T log_sum, T dot) {
#pragma omp simd
  for (Dim j = range.begin; j < range.end; ++j) {
    const T probability = exponential(scores[j] - log_sum);
    dscores[j] = probability * (dscores[j] - dot) * map.slope(scores[j]) * map.scale;
    scores[j] = probability;
  }
}

/// One query head: the operands of its backward pass, and the destination of dq.
template <class T>
struct QueryGradient {
  SeenKeys seen;
  ScoreMap<T> map;
  HeadRows<const T> q, dout, out;
  HeadRows<T> dq;
  const T* log_sum_exp;
};

template <class T>
T dot_product(const T* a, const T* b, Dim count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Dim i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// `rows` queries from `first` on against one block of keys from `key` on, of those before `end`.
struct BlockRange {
  Dim first, rows, key, end;
  bool begins;  ///< the first block of keys of these queries
};

/// The gradient of row i of a block of scores.
template <class T>
void row_gradient(const QueryGradient<T>& head, Dim query, const RowRange& range, T* scores,
                  T* dscores, T dot) {
  const T log_sum = head.log_sum_exp[query];
  if (head.map.softcap > T(0)) {
    head.map.cap(scores + range.begin, range.end - range.begin);
    capped_gradient(scores, dscores, range, head.map, log_sum, dot);
  } else {
    score_gradient(scores, dscores, range, head.map.scale, log_sum, dot);
  }
  for (T* row : {scores, dscores}) {
    std::fill(row, row + range.begin, T(0));
    std::fill(row + range.end, row + range.padded, T(0));
  }
}

/// Adds to dk, dv and the block's dq. `dots` are the dot products of dout and out by row.
template <class T>
void backward_block(const QueryGradient<T>& head, const BlockRange& range, const HeadWidths& widths,
                    const T* dots, const BackwardScratch<T>& s) {
  const auto [first, rows, key, end, begins] = range;
  const Dim seen = std::min(kKeyBlock, end - key);
  const Dim padded = round_up(seen, kPanel<T>);
  const auto [Dk, Dv] = widths;
  const Right<T> keys_t = {s.keys_transposed + key * Dk, kPanel<T>, kPanel<T> * Dk};
  const Right<T> values_t = {s.values_transposed + key * Dv, kPanel<T>, kPanel<T> * Dv};
  small_gemm<T>(rows, padded, Dk, {s.q, s.width, 1}, keys_t, {s.scores, s.score_row, false});
  small_gemm<T>(rows, padded, Dv, {s.dout, s.value_width, 1}, values_t,
                {s.dscores, s.score_row, false});
  for (Dim i = 0; i < rows; ++i) {
    const Dim query = first + i;
    const Dim row_end = std::clamp<Dim>(head.seen.end(query) - key, 0, seen);
    const Dim row_begin = std::clamp<Dim>(head.seen.begin(query) - key, 0, row_end);
    row_gradient(head, query, {row_begin, row_end, padded}, s.scores + i * s.score_row,
                 s.dscores + i * s.score_row, dots[i]);
  }
  small_gemm<T>(seen, s.value_width, rows, {s.scores, 1, s.score_row},
                {s.dout, s.value_width, kPanel<T>},
                {s.dv + key * s.value_width, s.value_width, true});
  small_gemm<T>(seen, s.width, rows, {s.dscores, 1, s.score_row}, {s.q, s.width, kPanel<T>},
                {s.dk + key * s.width, s.width, true});
  small_gemm<T>(rows, s.width, seen, {s.dscores, s.score_row, 1},
                {s.keys + key * s.width, s.width, kPanel<T>}, {s.dq, s.width, !begins});
}

template <class T>
void backward_head(const QueryGradient<T>& head, Dim tokens, const HeadWidths& widths,
                   const BackwardScratch<T>& s) {
  for (Dim first = 0; first < tokens; first += kQueryBlock) {
    const Dim rows = std::min(kQueryBlock, tokens - first);
    pack_rows<T>({head.q.row(first), head.q.stride}, rows, widths.key, s.width, s.q);
    pack_rows<T>({head.dout.row(first), head.dout.stride}, rows, widths.value, s.value_width,
                 s.dout);
    T dots[kQueryBlock];
    for (Dim i = 0; i < rows; ++i) {
      dots[i] = dot_product(head.dout.row(first + i), head.out.row(first + i), widths.value);
    }
    const Dim end = head.seen.end(first + rows - 1);
    const Dim begin = head.seen.begin(first) / kKeyBlock * kKeyBlock;
    if (begin >= end) std::fill_n(s.dq, rows * s.width, T(0));
    for (Dim key = begin; key < end; key += kKeyBlock) {
      backward_block(head, {first, rows, key, end, key == begin}, widths, dots, s);
    }
    for (Dim i = 0; i < rows; ++i) {
      std::copy_n(s.dq + i * s.width, widths.key, head.dq.row(first + i));
    }
  }
}

/// The views of one call as pointers.
template <class T>
struct BackwardCall {
  HeadLayout layout;  // with the width of keys
  const AttentionScores& scores;
  Dim queries, key_count, first_query;
  StridedHeads<const T> q, keys, values, dout, out;
  const T* log_sum_exp;
  StridedHeads<T> dq, dkeys, dvalues;
};

/// The query heads that share key-value head `kv` of sample b, in ascending order.
template <class T>
void backward_group(const BackwardCall<T>& call, Dim b, Dim kv, const BackwardScratch<T>& s) {
  const HeadLayout& layout = call.layout;
  const HeadWidths widths = {call.keys.width, call.values.width};
  const Dim count = call.key_count;
  const Dim group = layout.heads / layout.kv_heads;
  const HeadRows<const T> keys = call.keys.rows(b, kv);
  pack_transposed<T>(keys, count, widths.key, s.keys_transposed);
  pack_transposed<T>(call.values.rows(b, kv), count, widths.value, s.values_transposed);
  pack_rows<T>(keys, count, widths.key, s.width, s.keys);
  std::fill_n(s.dk, count * s.width, T(0));
  std::fill_n(s.dv, count * s.value_width, T(0));
  for (Dim h = kv * group; h < (kv + 1) * group; ++h) {
    const QueryGradient<T> head = {seen_keys(call.scores, b, call.queries, call.first_query, count),
                                   {call.scores, layout},
                                   call.q.rows(b, h),
                                   call.dout.rows(b, h),
                                   call.out.rows(b, h),
                                   call.dq.rows(b, h),
                                   call.log_sum_exp + (b * layout.heads + h) * call.queries};
    backward_head(head, call.queries, widths, s);
  }
  const HeadRows<T> dk = call.dkeys.rows(b, kv);
  const HeadRows<T> dv = call.dvalues.rows(b, kv);
  for (Dim t = 0; t < count; ++t) {
    std::copy_n(s.dk + t * s.width, widths.key, dk.row(t));
    std::copy_n(s.dv + t * s.value_width, widths.value, dv.row(t));
  }
}

template <class T>
void backward_all(Context& ctx, const char* op, const BackwardCall<T>& call, Dim B) {
  const HeadLayout& layout = call.layout;
  const HeadWidths widths = {call.keys.width, call.values.width};
  const Dim stride = BackwardScratch<T>(nullptr, widths, call.key_count).count;
  auto* base = static_cast<T*>(
      ctx.workspace(op, static_cast<std::size_t>(ctx.threads() * stride) * sizeof(T)));
  const auto groups = [&](int chunk, Dim begin, Dim end) {
    const BackwardScratch<T> scratch(base + chunk * stride, widths, call.key_count);
    for (Dim i = begin; i < end; ++i) {
      backward_group(call, i / layout.kv_heads, i % layout.kv_heads, scratch);
    }
  };
  parallel_chunks(ctx.threads(), B * layout.kv_heads,
                  work_of_products(5 * call.queries * call.key_count * layout.head_width), groups);
}

void backward(Context& ctx, const char* op, const AttentionOperands& operands,
              const AttentionScores& scores, CView dout, const AttentionPart& saved,
              const AttentionOperandGradients& gradients) {
  const auto& [q, k, v, first_query] = operands;
  const HeadLayout layout = operands.layout();
  const Dim queries = q.base.shape()[1];
  with_real(q.base.dtype(), op, [&]<class T>(T) {
    const BackwardCall<T> call = {
        layout,
        scores,
        queries,
        k.base.shape()[1],
        first_query,
        strided<const T>(q),
        strided<const T>(k),
        strided<const T>(v),
        strided<const T>(HeadsOf<CView>{dout, 0, layout.heads, v.width}),
        strided<const T>(HeadsOf<CView>{saved.out, 0, layout.heads, v.width}),
        saved.log_sum_exp.data<T>(),
        strided<T>(gradients.dq),
        strided<T>(gradients.dk),
        strided<T>(gradients.dv)};
    backward_all(ctx, op, call, q.base.shape()[0]);
  });
}

}  // namespace

std::size_t attention_operands_backward_workspace(int threads, const HeadWidths& widths, Dim keys,
                                                  DType dtype) {
  const Dim count = dtype == DType::f64 ? BackwardScratch<double>(nullptr, widths, keys).count
                                        : BackwardScratch<float>(nullptr, widths, keys).count;
  return static_cast<std::size_t>(threads * count) * size_of(statistic_dtype(dtype));
}

std::size_t attention_backward_workspace(int threads, const HeadLayout& layout, Dim keys,
                                         DType dtype) {
  return attention_operands_backward_workspace(threads, {layout.head_width, layout.head_width},
                                               keys, dtype);
}

void attention_operands_backward(Context& ctx, const AttentionOperands& operands,
                                 const AttentionScores& scores, CView dout,
                                 const AttentionPart& saved,
                                 const AttentionOperandGradients& gradients) {
  backward(ctx, "attention_operands_backward", operands, scores, dout, saved, gradients);
}

void attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                        CView dout, const AttentionSaved& saved,
                        const AttentionGradients& gradients) {
  const auto& [dqkv, dbias, accumulate_bias] = gradients;
  const Dim D = layout.head_width;
  const Dim key_column = layout.heads * D;
  backward(ctx, "attention_backward", packed_operands(layout, saved.qkv), scores, dout,
           {saved.out, saved.log_sum_exp},
           {{dqkv, 0, layout.heads, D},
            {dqkv, key_column, layout.kv_heads, D},
            {dqkv, key_column + layout.kv_heads * D, layout.kv_heads, D}});
  if (dbias) cpu::linear_backward_weight(ctx, dqkv, {}, accumulate_bias, {}, dbias);
}

}  // namespace hyperslab::ops::cpu
