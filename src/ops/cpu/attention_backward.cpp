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
  Dim width;
  Dim score_row;
  T *keys_transposed, *values_transposed, *keys, *dk, *dv;
  T *q, *dout, *dq, *scores, *dscores;
  Dim count;

  BackwardScratch(T* base, const HeadLayout& layout, Dim max_keys)
      : width(round_up(layout.head_width, kLanes<T>)), score_row(kKeyBlock + kLanes<T>) {
    Carver<T> carver(base);
    const Dim padded = round_up(max_keys, kPanel<T>);
    keys_transposed = carver.take(padded * layout.head_width);
    values_transposed = carver.take(padded * layout.head_width);
    keys = carver.take(max_keys * width);
    dk = carver.take(max_keys * width);
    dv = carver.take(max_keys * width);
    q = carver.take(kQueryBlock * width);
    dout = carver.take(kQueryBlock * width);
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
void backward_block(const QueryGradient<T>& head, const BlockRange& range, Dim head_width,
                    const T* dots, const BackwardScratch<T>& s) {
  const auto [first, rows, key, end, begins] = range;
  const Dim seen = std::min(kKeyBlock, end - key);
  const Dim padded = round_up(seen, kPanel<T>);
  const Dim panel = kPanel<T> * head_width;
  const Right<T> keys_t = {s.keys_transposed + key * head_width, kPanel<T>, panel};
  const Right<T> values_t = {s.values_transposed + key * head_width, kPanel<T>, panel};
  small_gemm<T>(rows, padded, head_width, {s.q, s.width, 1}, keys_t,
                {s.scores, s.score_row, false});
  small_gemm<T>(rows, padded, head_width, {s.dout, s.width, 1}, values_t,
                {s.dscores, s.score_row, false});
  for (Dim i = 0; i < rows; ++i) {
    const Dim query = first + i;
    const Dim row_end = std::clamp<Dim>(head.seen.end(query) - key, 0, seen);
    const Dim row_begin = std::clamp<Dim>(head.seen.begin(query) - key, 0, row_end);
    row_gradient(head, query, {row_begin, row_end, padded}, s.scores + i * s.score_row,
                 s.dscores + i * s.score_row, dots[i]);
  }
  small_gemm<T>(seen, s.width, rows, {s.scores, 1, s.score_row}, {s.dout, s.width, kPanel<T>},
                {s.dv + key * s.width, s.width, true});
  small_gemm<T>(seen, s.width, rows, {s.dscores, 1, s.score_row}, {s.q, s.width, kPanel<T>},
                {s.dk + key * s.width, s.width, true});
  small_gemm<T>(rows, s.width, seen, {s.dscores, s.score_row, 1},
                {s.keys + key * s.width, s.width, kPanel<T>}, {s.dq, s.width, !begins});
}

template <class T>
void backward_head(const QueryGradient<T>& head, Dim tokens, Dim head_width,
                   const BackwardScratch<T>& s) {
  for (Dim first = 0; first < tokens; first += kQueryBlock) {
    const Dim rows = std::min(kQueryBlock, tokens - first);
    pack_rows<T>({head.q.row(first), head.q.stride}, rows, head_width, s.width, s.q);
    pack_rows<T>({head.dout.row(first), head.dout.stride}, rows, head_width, s.width, s.dout);
    T dots[kQueryBlock];
    for (Dim i = 0; i < rows; ++i) {
      dots[i] = dot_product(head.dout.row(first + i), head.out.row(first + i), head_width);
    }
    const Dim end = head.seen.end(first + rows - 1);
    const Dim begin = head.seen.begin(first) / kKeyBlock * kKeyBlock;
    for (Dim key = begin; key < end; key += kKeyBlock) {
      backward_block(head, {first, rows, key, end, key == begin}, head_width, dots, s);
    }
    for (Dim i = 0; i < rows; ++i) {
      std::copy_n(s.dq + i * s.width, head_width, head.dq.row(first + i));
    }
  }
}

/// The views of one call as pointers.
template <class T>
struct BackwardCall {
  HeadLayout layout;
  const AttentionScores& scores;
  Dim tokens;
  const T *dout, *qkv, *out, *log_sum_exp;
  T* dqkv;
};

/// The query heads that share key-value head `kv` of sample b, in ascending order.
template <class T>
void backward_group(const BackwardCall<T>& call, Dim b, Dim kv, const BackwardScratch<T>& s) {
  const HeadLayout& layout = call.layout;
  const Dim D = layout.head_width;
  const Dim tokens = call.tokens;
  const Dim group = layout.heads / layout.kv_heads;
  const Dim packed = layout.packed_width();
  const Dim sample = b * tokens * packed;
  const Dim key_column = (layout.heads + kv) * D;
  const Dim value_column = key_column + layout.kv_heads * D;
  const HeadRows<const T> keys = {call.qkv + sample + key_column, packed};
  pack_transposed<T>(keys, tokens, D, s.keys_transposed);
  pack_transposed<T>({call.qkv + sample + value_column, packed}, tokens, D, s.values_transposed);
  pack_rows<T>(keys, tokens, D, s.width, s.keys);
  std::fill_n(s.dk, tokens * s.width, T(0));
  std::fill_n(s.dv, tokens * s.width, T(0));
  const Dim out_row = layout.heads * D;
  for (Dim h = kv * group; h < (kv + 1) * group; ++h) {
    const Dim at = b * tokens * out_row + h * D;
    const QueryGradient<T> head = {seen_keys(call.scores, b, tokens, 0),
                                   {call.scores, layout},
                                   {call.qkv + sample + h * D, packed},
                                   {call.dout + at, out_row},
                                   {call.out + at, out_row},
                                   {call.dqkv + sample + h * D, packed},
                                   call.log_sum_exp + (b * layout.heads + h) * tokens};
    backward_head(head, tokens, D, s);
  }
  for (Dim t = 0; t < tokens; ++t) {
    T* row = call.dqkv + sample + t * packed;
    std::copy_n(s.dk + t * s.width, D, row + key_column);
    std::copy_n(s.dv + t * s.width, D, row + value_column);
  }
}

}  // namespace

std::size_t attention_backward_workspace(int threads, const HeadLayout& layout, Dim keys,
                                         DType dtype) {
  const Dim count = dtype == DType::f64 ? BackwardScratch<double>(nullptr, layout, keys).count
                                        : BackwardScratch<float>(nullptr, layout, keys).count;
  return static_cast<std::size_t>(threads * count) * size_of(statistic_dtype(dtype));
}

void attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                        CView dout, const AttentionSaved& saved,
                        const AttentionGradients& gradients) {
  const CView qkv = saved.qkv;
  const auto& [dqkv, dbias, accumulate_bias] = gradients;
  with_real(qkv.dtype(), "attention_backward", [&]<class T>(T) {
    const Dim B = qkv.shape()[0];
    const Dim tokens = qkv.shape()[1];
    auto* base = static_cast<T*>(
        ctx.workspace("attention_backward",
                      attention_backward_workspace(ctx.threads(), layout, tokens, qkv.dtype())));
    const BackwardCall<T> call = {layout,
                                  scores,
                                  tokens,
                                  dout.data<T>(),
                                  qkv.data<T>(),
                                  saved.out.data<T>(),
                                  saved.log_sum_exp.data<T>(),
                                  dqkv.data<T>()};
    const auto groups = [&](int chunk, Dim begin, Dim end) {
      const Dim stride = BackwardScratch<T>(nullptr, layout, tokens).count;
      const BackwardScratch<T> scratch(base + chunk * stride, layout, tokens);
      for (Dim i = begin; i < end; ++i) {
        backward_group(call, i / layout.kv_heads, i % layout.kv_heads, scratch);
      }
    };
    parallel_chunks(ctx.threads(), B * layout.kv_heads,
                    work_of_products(5 * tokens * tokens * layout.head_width), groups);
  });
  if (dbias) cpu::linear_backward_weight(ctx, dqkv, {}, accumulate_bias, {}, dbias);
}

}  // namespace hyperslab::ops::cpu
