// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "../backend.hpp"
#include "../checks.hpp"
#include "attention_pack.hpp"
#include "math.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// One thread's scratch memory: packed keys and values of a head, the scores of a block of queries
/// against all keys, and the block's output.
template <class T>
struct ForwardScratch {
  Dim width;      // a value's, rounded up to vectors
  Dim score_row;  // not a power of two, so that columns do not share cache sets
  T* keys;
  T* values;
  T* scores;
  T* out;
  Dim count;

  ForwardScratch(T* base, const HeadWidths& widths, Dim max_keys)
      : width(round_up(widths.value, kLanes<T>)),
        score_row(round_up(max_keys, kPanel<T>) + kLanes<T>) {
    Carver<T> carver(base);
    keys = carver.take(round_up(max_keys, kPanel<T>) * widths.key);
    values = carver.take(max_keys * width);
    scores = carver.take(kQueryBlock * score_row);
    out = carver.take(kQueryBlock * width);
    count = carver.used();
  }
};

/// The largest of the first `valid` scores. Whole vectors are read; elements after these are
/// ignored.
template <class T>
T largest_score(const T* scores, Dim valid) {
  constexpr int kWidth = kLanes<T>;
  T top[kWidth];
  std::fill_n(top, kWidth, -std::numeric_limits<T>::infinity());
  for (Dim j = 0; j < valid; j += kWidth) {
    const int here = static_cast<int>(std::min<Dim>(kWidth, valid - j));
#pragma omp simd
    for (int lane = 0; lane < kWidth; ++lane) {
      const T score = lane < here ? scores[j + lane] : top[lane];
      top[lane] = score > top[lane] ? score : top[lane];
    }
  }
  T result = top[0];
#pragma omp simd reduction(max : result)
  for (int lane = 0; lane < kWidth; ++lane) result = top[lane] > result ? top[lane] : result;
  return result;
}

/// Replaces the first `valid` scores by e^(scale * (s - max)), the rest of the last vector by zero.
/// Returns the sum; `log_sum` becomes the logarithm of the sum of e^(scale * s).
template <class T>
T exponentiate(T* scores, Dim valid, T scale, T& log_sum) {
  constexpr int kWidth = kLanes<T>;
  const T top = largest_score(scores, valid);
  T sums[kWidth] = {};
  for (Dim j = 0; j < valid; j += kWidth) {
    const int here = static_cast<int>(std::min<Dim>(kWidth, valid - j));
#pragma omp simd
    for (int lane = 0; lane < kWidth; ++lane) {
      const T term = exponential(scale * (scores[j + lane] - top));
      scores[j + lane] = lane < here ? term : T(0);
      sums[lane] += lane < here ? term : T(0);
    }
  }
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int lane = 0; lane < kWidth; ++lane) sum += sums[lane];
  log_sum = scale * top + std::log(sum);
  return sum;
}

/// The rows of one query head and where its results go.
template <class T>
struct QueryHead {
  SeenKeys seen;
  ScoreMap<T> map;
  HeadRows<const T> q;
  HeadRows<T> out;
  T* log_sum_exp;  // null if it is not kept
  HeadSink<T> sink;
};

/// Row `query` of the scores against keys [first_key, last_key) becomes weights, zero for keys that
/// it does not see. Returns one over their sum.
template <class T>
T weigh(const QueryHead<T>& head, Dim query, Dim first_key, Dim last_key, T* scores) {
  const Dim begin = head.seen.begin(query) - first_key;
  const Dim end = head.seen.end(query) - first_key;
  std::fill(scores, scores + begin, T(0));
  T scale = head.map.scale;
  if (head.map.softcap > T(0)) {
    head.map.cap(scores + begin, end - begin);
    scale = T(1);
  }
  T log_sum = -std::numeric_limits<T>::infinity();
  const bool sees = begin < end;
  const T sum = sees ? exponentiate(scores + begin, end - begin, scale, log_sum) : T(1);
  std::fill(scores + end, scores + std::max(end, last_key - first_key), T(0));
  const T share = head.sink.logit != nullptr ? head.sink.join(query, log_sum) : T(1);
  if (head.log_sum_exp != nullptr) head.log_sum_exp[query] = log_sum;
  return share / sum;
}

/// Attention of `queries` rows at positions past, past + 1, ... on packed keys and values.
template <class T>
void attend(const QueryHead<T>& head, const HeadWidths& widths, const ForwardScratch<T>& scratch,
            Right<T> keys, Right<T> values) {
  for (Dim first = 0; first < head.seen.queries; first += kQueryBlock) {
    const Dim rows = std::min(kQueryBlock, head.seen.queries - first);
    // Keys before the first that any of these rows sees are left out, by whole panels.
    const Dim from = head.seen.begin(first) / kPanel<T> * kPanel<T>;
    const Dim visible = head.seen.end(first + rows - 1) - from;
    const Dim padded = round_up(visible, kPanel<T>);
    const Right<T> keys_here = {keys.data + from * widths.key, keys.inner, keys.panel};
    const Right<T> values_here = {values.data + from * values.inner, values.inner, values.panel};
    small_gemm<T>(rows, padded, widths.key, {head.q.row(first), head.q.stride, 1}, keys_here,
                  {scratch.scores, scratch.score_row, false});
    T inverse[kQueryBlock];
    for (Dim i = 0; i < rows; ++i) {
      inverse[i] =
          weigh(head, first + i, from, from + padded, scratch.scores + i * scratch.score_row);
    }
    small_gemm<T>(rows, scratch.width, visible, {scratch.scores, scratch.score_row, 1}, values_here,
                  {scratch.out, scratch.width, false});
    for (Dim i = 0; i < rows; ++i) {
      const T* source = scratch.out + i * scratch.width;
      T* target = head.out.row(first + i);
#pragma omp simd
      for (Dim d = 0; d < widths.value; ++d) target[d] = source[d] * inverse[i];
    }
  }
}

/// The operands of one call of attention, over all samples and heads.
template <class T>
struct ForwardCall {
  HeadLayout layout;  // with the width of keys
  const AttentionScores& scores;
  Dim queries;
  TokenPosition past;
  StridedHeads<const T> q;
  StridedHeads<const T> keys;
  StridedHeads<const T> values;
  T* out;
  T* log_sum_exp;
  CView pages{};  // (B, most): rows are in pages, and samples no distance apart
  Dim page_rows = 1;
  Dim given_keys = -1;  // a sample's; -1: up to the last query's own

  [[nodiscard]] HeadWidths widths() const { return {keys.width, values.width}; }
  [[nodiscard]] Dim key_count(Dim past_keys) const {
    return given_keys < 0 ? past_keys + queries : given_keys;
  }
  [[nodiscard]] HeadRows<const T> rows(const StridedHeads<const T>& of, Dim b, Dim kv) const {
    HeadRows<const T> rows = of.rows(b, kv);
    if (!pages) return rows;
    return {rows.data, rows.stride, pages.data<std::int32_t>() + b * pages.shape()[1], page_rows};
  }
};

/// The query heads that share key-value head `kv` of sample b.
template <class T>
void attend_group(const ForwardCall<T>& call, Dim b, Dim kv, const ForwardScratch<T>& scratch) {
  const HeadLayout& layout = call.layout;
  const auto [Dk, Dv] = call.widths();
  const Dim group = layout.heads / layout.kv_heads;
  const Dim past = call.past.of(b);
  const Dim visible = call.key_count(past);
  const Right<T> keys = {scratch.keys, kPanel<T>, kPanel<T> * Dk};
  const Right<T> values = {scratch.values, scratch.width, kPanel<T>};
  for_each_run<T>(call.rows(call.keys, b, kv), visible, [&](auto rows, Dim first, Dim count) {
    pack_transposed<T>(rows, count, call.keys.width, scratch.keys + first * call.keys.width);
  });
  for_each_run<T>(call.rows(call.values, b, kv), visible, [&](auto rows, Dim first, Dim count) {
    pack_rows<T>(rows, count, call.values.width, scratch.width,
                 scratch.values + first * scratch.width);
  });
  const Dim out_row = layout.heads * Dv;
  for (Dim h = kv * group; h < (kv + 1) * group; ++h) {
    const QueryHead<T> head = {
        seen_keys(call.scores, b, call.queries, past, visible),
        {call.scores, layout},
        call.q.rows(b, h),
        {call.out + b * call.queries * out_row + h * Dv, out_row},
        call.log_sum_exp ? call.log_sum_exp + (b * layout.heads + h) * call.queries : nullptr,
        {call.scores.sinks, layout, b, h, call.queries}};
    attend(head, {Dk, Dv}, scratch, keys, values);
  }
}

template <class T>
void attend_all(Context& ctx, const char* op, const ForwardCall<T>& call, Dim B, Dim max_keys) {
  const HeadLayout& layout = call.layout;
  const HeadWidths widths = call.widths();
  const Dim stride = ForwardScratch<T>(nullptr, widths, max_keys).count;
  auto* base = static_cast<T*>(
      ctx.workspace(op, static_cast<std::size_t>(ctx.threads() * stride) * sizeof(T)));
  const Dim keys = call.key_count(call.past.value) * layout.head_width;
  const Dim work = 2 * keys + work_of_products(2 * keys * call.queries);
  parallel_chunks(ctx.threads(), B * layout.kv_heads, work, [&](int chunk, Dim begin, Dim end) {
    const ForwardScratch<T> scratch(base + chunk * stride, widths, max_keys);
    for (Dim i = begin; i < end; ++i) {
      attend_group(call, i / layout.kv_heads, i % layout.kv_heads, scratch);
    }
  });
}

/// Row of the cache at which a token of a sample lies; -1: its page is not there.
Dim cache_row(const KeyValueCache& cache, Dim sample, Dim token) {
  const Dim tokens = cache.page_tokens();
  if (!cache.pages) return sample * tokens + token;
  const auto pages = cache.pages.span<std::int32_t>();
  const Dim page = pages[sample * cache.pages.shape()[1] + token / tokens];
  return page < 0 ? -1 : page * tokens + token % tokens;
}

/// Writes keys and values of the new tokens to the cache.
template <class T>
void append(const HeadLayout& layout, CView qkv, const KeyValueCache& cache) {
  const auto [B, T_new, packed] = qkv.dims<3>("attention_cached_forward qkv");
  const Dim width = layout.kv_heads * layout.head_width;
  for (Dim row = 0; row < B * T_new; ++row) {
    const Dim to = cache_row(cache, row / T_new, cache.past.of(row / T_new) + row % T_new);
    if (to < 0) continue;
    const T* from = qkv.data<T>() + row * packed + layout.heads * layout.head_width;
    std::copy_n(from, width, cache.keys.data<T>() + to * width);
    std::copy_n(from + width, width, cache.values.data<T>() + to * width);
  }
}

}  // namespace

std::size_t attention_operands_forward_workspace(int threads, const HeadWidths& widths, Dim keys,
                                                 DType dtype) {
  const Dim count = dtype == DType::f64 ? ForwardScratch<double>(nullptr, widths, keys).count
                                        : ForwardScratch<float>(nullptr, widths, keys).count;
  return static_cast<std::size_t>(threads * count) * size_of(statistic_dtype(dtype));
}

std::size_t attention_forward_workspace(int threads, const HeadLayout& layout, Dim keys,
                                        DType dtype) {
  return attention_operands_forward_workspace(threads, {layout.head_width, layout.head_width}, keys,
                                              dtype);
}

void attention_operands_forward(Context& ctx, const AttentionOperands& operands,
                                const AttentionScores& scores, View out, View log_sum_exp) {
  const auto& [q, k, v, first_query] = operands;
  with_real(q.base.dtype(), "attention_operands_forward", [&]<class T>(T) {
    const Dim keys = k.base.shape()[1];
    ForwardCall<T> call = {operands.layout(),    scores,
                           q.base.shape()[1],    first_query,
                           strided<const T>(q),  strided<const T>(k),
                           strided<const T>(v),  out.data<T>(),
                           log_sum_exp.data<T>()};
    call.given_keys = keys;
    attend_all(ctx, "attention_operands_forward", call, q.base.shape()[0], keys);
  });
}

void attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                       CView qkv, View out, View log_sum_exp) {
  const auto [q, k, v, first_query] = packed_operands(layout, qkv);
  with_real(qkv.dtype(), "attention_forward", [&]<class T>(T) {
    const Dim tokens = qkv.shape()[1];
    const ForwardCall<T> call = {layout,
                                 scores,
                                 tokens,
                                 0,
                                 strided<const T>(q),
                                 strided<const T>(k),
                                 strided<const T>(v),
                                 out.data<T>(),
                                 log_sum_exp.data<T>()};
    attend_all(ctx, "attention_forward", call, qkv.shape()[0], tokens);
  });
}

/// The op has rotated qkv.
void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              const RotaryTables& /*tables*/, View qkv, const KeyValueCache& cache,
                              View out) {
  with_real(qkv.dtype(), "attention_cached_forward", [&]<class T>(T) {
    append<T>(layout, qkv, cache);
    const Dim width = layout.kv_heads * layout.head_width;
    const Dim sample = cache.pages ? 0 : cache.page_tokens() * width;
    const ForwardCall<T> call = {layout,
                                 scores,
                                 qkv.shape()[1],
                                 cache.past,
                                 strided<const T>(packed_operands(layout, qkv).q),
                                 {cache.keys.data<T>(), sample, width, layout.head_width},
                                 {cache.values.data<T>(), sample, width, layout.head_width},
                                 out.data<T>(),
                                 nullptr,
                                 cache.pages,
                                 cache.page_tokens()};
    attend_all(ctx, "attention_cached_forward", call, qkv.shape()[0], cache.room());
  });
}

}  // namespace hyperslab::ops::cpu
