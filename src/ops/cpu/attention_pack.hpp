// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../backend.hpp"
#include "hyperslab/ops/attention.hpp"
#include "math.hpp"
#include "parallel.hpp"
#include "small_gemm.hpp"

namespace hyperslab::ops::cpu {

inline constexpr Dim kQueryBlock =
    32;  // rows of scores at once: half of them are masked on average

/// Which keys the queries of one sample see: query i's keys are [begin(i), end(i)), and neither
/// end falls with i. A query before all keys, or whose window lies behind them, sees none.
struct SeenKeys {
  bool causal = true;
  Dim window = 0;
  const std::int32_t* first = nullptr;  ///< (queries) first key that each may see; null: 0
  Dim queries = 0;
  Dim past = 0;  ///< keys before the first query's own
  Dim keys = 0;

  [[nodiscard]] Dim begin(Dim query) const {
    const Dim from_window = window > 0 ? std::max<Dim>(0, past + query + 1 - window) : 0;
    const Dim from = first == nullptr ? from_window
                                      : std::clamp<Dim>(first[query], from_window,
                                                        std::max(from_window, past + query));
    return std::min(from, end(query));
  }
  [[nodiscard]] Dim end(Dim query) const {
    return causal ? std::clamp<Dim>(past + query + 1, 0, keys) : keys;
  }
};

/// The keys that queries of sample b see, of so many.
inline SeenKeys seen_keys(const AttentionScores& scores, Dim b, Dim queries, Dim past, Dim keys) {
  const bool confined = static_cast<bool>(scores.first_keys);
  return {scores.mask.kind == AttentionMask::Kind::causal,
          scores.mask.window,
          confined ? scores.first_keys.data<std::int32_t>() + b * queries : nullptr,
          queries,
          past,
          keys};
}

/// Maps products of queries and keys to scores, which softmax takes.
template <class T>
struct ScoreMap {
  T scale = 1;
  T softcap = 0;
  ScoreMap(const AttentionScores& scores, const HeadLayout& layout)
      : scale(static_cast<T>(scores.scale_of(layout))), softcap(static_cast<T>(scores.softcap)) {}

  /// Replaces `count` products by capped scores.
  void cap(T* products, Dim count) const {
#pragma omp simd
    for (Dim j = 0; j < count; ++j) {
      products[j] = softcap * hyperbolic_tangent(scale * products[j] / softcap);
    }
  }
  /// The derivative of a capped score by its product, over scale.
  [[nodiscard]] T slope(T score) const { return T(1) - (score / softcap) * (score / softcap); }
};

/// The sink of one head, if there is one.
template <class T>
struct HeadSink {
  const T* logit = nullptr;  ///< null: there is none
  T* weights = nullptr;      ///< (queries) the sink's weight in each softmax; null: not wanted

  HeadSink() = default;
  /// The sink of head h of sample b, with so many queries.
  HeadSink(const AttentionSinks& sinks, const HeadLayout& layout, Dim b, Dim h, Dim queries) {
    if (sinks.logits) logit = sinks.logits.data<T>() + h;
    if (sinks.weights) weights = sinks.weights.data<T>() + (b * layout.heads + h) * queries;
  }
  /// Takes part in a query's softmax: log_sum, of its scores alone, becomes that with the sink.
  /// Returns the share of the weight that stays with the scores.
  T join(Dim query, T& log_sum) const {
    const T top = std::max(log_sum, *logit);
    const T total = top + std::log(std::exp(log_sum - top) + std::exp(*logit - top));
    const T share = std::exp(log_sum - total);
    if (weights != nullptr) weights[query] = std::exp(*logit - total);
    log_sum = total;
    return share;
  }
};

/// The rows of one head inside a wider matrix, or inside pages of it.
template <class T>
struct HeadRows {
  T* data;
  Dim stride;
  const std::int32_t* pages = nullptr;  ///< null: rows follow each other
  Dim page_rows = 1;                    ///< a power of two
  [[nodiscard]] T* row(Dim i) const {
    if (pages == nullptr) return data + i * stride;
    const int shift = std::countr_zero(static_cast<std::uint64_t>(page_rows));
    const Dim page = std::max(pages[i >> shift], 0);  // page -1 serves no output in use
    return data + (page * page_rows + (i & (page_rows - 1))) * stride;
  }
};

/// The heads of all samples in one buffer.
template <class T>
struct StridedHeads {
  T* data;
  Dim sample;  ///< elements from one sample to the next
  Dim row;     ///< elements from one token to the next
  Dim width;
  [[nodiscard]] HeadRows<T> rows(Dim b, Dim h) const {
    return {data + b * sample + h * width, row};
  }
};
template <class T, class V>
[[nodiscard]] StridedHeads<T> strided(const HeadsOf<V>& heads) {
  const Dim row = heads.base.shape()[2];
  return {heads.base.template data<std::remove_const_t<T>>() + heads.first,
          heads.base.shape()[1] * row, row, heads.width};
}

/// Hands out parts of one thread's scratch memory; on a null base it only counts.
template <class T>
class Carver {
 public:
  explicit Carver(T* base) : base_(base) {}
  T* take(Dim count) {
    T* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count, kLanes<T>);
    return part;
  }
  [[nodiscard]] Dim used() const { return used_; }

 private:
  T* base_;
  Dim used_ = 0;
};

/// Asks for a row some rows ahead: rows of a head lie pages apart, and hardware does not prefetch
/// across pages.
template <class T>
void prefetch_ahead(HeadRows<const T> rows, Dim i, Dim count, Dim head_width) {
  constexpr Dim kAhead = 16;
  if (i + kAhead >= count) return;
  const T* row = rows.row(i + kAhead);
  for (Dim d = 0; d < head_width; d += kLanes<T>) __builtin_prefetch(row + d);
}

/// Transposes `count` rows of a head into panels of columns, the right operand of q k^T; columns
/// beyond `count` become zero. out: round_up(count, kPanel) * head_width.
template <class T>
Right<T> pack_transposed(HeadRows<const T> rows, Dim count, Dim head_width, T* out) {
  constexpr Dim kWidth = kPanel<T>;
  for (Dim first = 0; first < count; first += kWidth) {
    T* panel = out + first * head_width;
    const Dim here = std::min(kWidth, count - first);
    if (here < kWidth) std::fill_n(panel, kWidth * head_width, T(0));
    for (Dim j = 0; j < here; ++j) {
      prefetch_ahead(rows, first + j, count, head_width);
      const T* source = rows.row(first + j);
      for (Dim d = 0; d < head_width; ++d) panel[d * kWidth + j] = source[d];
    }
  }
  return {out, kWidth, kWidth * head_width};
}

/// Copies `count` rows of a head to rows of `width` elements, zero beyond head_width.
template <class T>
Right<T> pack_rows(HeadRows<const T> rows, Dim count, Dim head_width, Dim width, T* out) {
  for (Dim i = 0; i < count; ++i) {
    prefetch_ahead(rows, i, count, head_width);
    std::copy_n(rows.row(i), head_width, out + i * width);
    std::fill_n(out + i * width + head_width, width - head_width, T(0));
  }
  return {out, width, kPanel<T>};
}

/// Calls pack(rows, first, count) for rows of a head that follow each other: a page's rows, if
/// pages hold whole panels.
template <class T, class Pack>
void for_each_run(HeadRows<const T> rows, Dim count, const Pack& pack) {
  if (rows.pages == nullptr || rows.page_rows % kPanel<T> != 0) return pack(rows, 0, count);
  for (Dim first = 0; first < count; first += rows.page_rows) {
    const HeadRows<const T> page = {rows.row(first), rows.stride};
    pack(page, first, std::min(rows.page_rows, count - first));
  }
}

}  // namespace hyperslab::ops::cpu
