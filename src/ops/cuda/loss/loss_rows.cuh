// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "cuda/tools/common.cuh"
#include "cuda/tools/softmax.cuh"

namespace hyperslab::ops::cuda {

/// A shard whose counts fit an int, and how far rows are apart.
struct Columns {
  Dim stride;
  Dim first;
  int count;
  Dim vocabulary;
  Columns(CView logits, const VocabularyShard& shard)
      : stride(logits.shape()[1]),
        first(shard.first),
        count(static_cast<int>(shard.count)),
        vocabulary(shard.vocabulary) {
    require(stride < std::numeric_limits<int>::max() / 2, "loss logits: too wide");
  }
  [[nodiscard]] __device__ bool is_here(std::int32_t token) const {
    return token >= first && token < first + count;
  }
};

/// The row in three parts: scalars up to the first 16-byte boundary, vectors, scalars.
template <class T>
struct RowParts {
  int count;
  int head;
  int vectors;
  int tail;  ///< first of the last scalars
  __device__ RowParts(const T* row, int size) : count(size) {
    constexpr int N = kVector<T>;
    const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = min((N - past) % N, count);
    vectors = (count - head) / N;
    tail = head + vectors * N;
  }
};

inline constexpr int kNoColumn = std::numeric_limits<int>::max();

/// The statistics of the part of a row that one thread has seen, in ascending order.
template <class T>
struct Seen {
  OnlineSum<sizeof(T) == 2> sum;
  int largest_at = kNoColumn;  ///< first column of the largest logit

  /// Elements first to first + N.
  template <int N>
  __device__ void add(const float (&value)[N], int first) {
    const float before = sum.top;
    const float largest = sum.add(value);
    if (!(largest > before)) return;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
      if (value[i] == largest) largest_at = first + i;
    }
  }
};

/// Adds elements [begin, end) of a row, one by one, to the thread's statistics.
template <class T>
__device__ void read_scalars(const T* row, int begin, int end, Seen<T>& seen) {
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += blockDim.x) {
    const float value[1] = {to_real(row[i])};
    seen.add(value, i);
  }
}

template <class T>
__device__ Seen<T> read_row(const T* row, const RowParts<T>& parts) {
  constexpr int N = kVector<T>;
  Seen<T> seen;
  read_scalars(row, 0, parts.head, seen);
#pragma unroll 4
  for (int v = static_cast<int>(threadIdx.x); v < parts.vectors; v += blockDim.x) {
    const int first = parts.head + v * N;
    float value[N];
    load<N>(row + first, value);
    seen.add(value, first);
  }
  read_scalars(row, parts.tail, parts.count, seen);
  return seen;
}

/// row = e^(row - top) * factor.
template <class T>
__device__ void write_row(T* row, const RowParts<T>& parts, float top, float factor) {
  constexpr int N = kVector<T>;
  constexpr bool kFast = sizeof(T) == 2;
#pragma unroll 2
  for (int v = static_cast<int>(threadIdx.x); v < parts.vectors; v += blockDim.x) {
    const int first = parts.head + v * N;
    float value[N];
    load<N>(row + first, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = exponential<kFast>(value[k] - top) * factor;
    store<N>(row + first, value);
  }
  const auto scalars = [&](int begin, int end) {
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += blockDim.x) {
      row[i] = from_real<T>(exponential<kFast>(to_real(row[i]) - top) * factor);
    }
  };
  scalars(0, parts.head);
  scalars(parts.tail, parts.count);
}

template <class T>
__device__ void clear_row(T* row, Dim begin, Dim end) {
  for (Dim i = begin + threadIdx.x; i < end; i += blockDim.x) row[i] = from_real<T>(0.0F);
}

/// The fields of RowStatistic.
struct RowTotal {
  float largest;
  float exponentials;
  float target;
  float answer;
};

/// The statistics of all threads together. `answer` holds for thread 0 alone.
template <bool kBlock, class T>
__device__ RowTotal total_of_row(const Seen<T>& seen, const Columns& columns, float at_target,
                                 SoftmaxScratch& scratch) {
  const auto total = row_total<kBlock>(seen.sum, scratch);
  const int mine = seen.sum.top == total.top ? seen.largest_at : kNoColumn;
  const int column = row_min<kBlock>(mine, scratch);
  const Dim none = columns.count == 0 ? columns.vocabulary : columns.first;
  const Dim answer = column == kNoColumn ? none : columns.first + column;
  return {total.top, total.sum, at_target, static_cast<float>(answer)};
}

/// The whole row from the statistics of all ranks, `stride` elements from one to the next.
__device__ inline RowTotal total_of_ranks(const float* statistics, Dim ranks, Dim stride,
                                          Dim vocabulary) {
  RowTotal total = {-INFINITY, 0, -INFINITY, static_cast<float>(vocabulary)};
  for (Dim rank = 0; rank < ranks; ++rank) {
    const float* of_rank = statistics + rank * stride;
    total.largest = fmaxf(total.largest, of_rank[kRowLargest]);
    total.target = fmaxf(total.target, of_rank[kRowTarget]);
  }
  for (Dim rank = 0; rank < ranks; ++rank) {
    const float* of_rank = statistics + rank * stride;
    const bool leads = of_rank[kRowLargest] == total.largest;
    const float factor = leads ? 1.0F : expf(of_rank[kRowLargest] - total.largest);
    total.exponentials += of_rank[kRowExponentials] * factor;
    if (leads) total.answer = fminf(total.answer, of_rank[kRowAnswer]);
  }
  return total;
}

template <class T>
struct LossCall {
  Dim rows;
  Columns columns;
  T* logits;
  const std::int32_t* targets;
  const StepState* state;
  bool gradient;
  float z_loss;
  RowLoss* out;
};

/// One thread: the loss of a row that counts.
template <class T>
__device__ void write_loss(const LossCall<T>& call, Dim row, std::int32_t target,
                           const RowTotal& total) {
  const double log_z =
      log(static_cast<double>(total.exponentials)) + static_cast<double>(total.largest);
  const double z_loss = call.z_loss > 0 ? static_cast<double>(call.z_loss) * log_z * log_z : 0.0;
  const bool correct = total.target == total.largest && total.answer == static_cast<float>(target);
  call.out[row] = RowLoss{log_z - static_cast<double>(total.target), static_cast<float>(z_loss), 1,
                          correct ? 1.0F : 0.0F};
}

/// One thread: a row that does not count; a target outside the vocabulary gives a loss that is not
/// a number, which finalize_step finds.
template <class T>
__device__ void write_no_loss(const LossCall<T>& call, Dim row, std::int32_t target) {
  call.out[row] = {target == kIgnoredTarget ? 0.0 : static_cast<double>(nanf("")), 0, 0, 0};
}

/// The factor of e^(logit - largest) in the gradient, `scale` of the loss.
template <class T>
__device__ float softmax_factor(const LossCall<T>& call, const RowTotal& total, float scale) {
  if (call.z_loss > 0) {
    scale *= 1.0F + 2.0F * call.z_loss * (logf(total.exponentials) + total.largest);
  }
  return scale / total.exponentials;
}

}  // namespace hyperslab::ops::cuda
