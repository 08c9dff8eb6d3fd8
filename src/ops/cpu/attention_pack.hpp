// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "hyperslab/ops/attention.hpp"
#include "parallel.hpp"
#include "small_gemm.hpp"

namespace hyperslab::ops::cpu {

inline constexpr Dim kQueryBlock =
    32;  // rows of scores at once: half of them are masked on average

/// The rows of one head inside a wider matrix.
template <class T>
struct HeadRows {
  T* data;
  Dim stride;
  [[nodiscard]] T* row(Dim i) const { return data + i * stride; }
};

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

}  // namespace hyperslab::ops::cpu
