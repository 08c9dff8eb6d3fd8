// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "cuda/tools/common.cuh"
#include "cuda/tools/softmax.cuh"
#include "row_terms.hpp"

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

/// The values of the rows' targets, absent if the loss is minus their log-probability.
struct TermsCall {
  const float* values;
  int columns;
  const std::int32_t* teacher_ids;
  TokenLoss loss;
  RowTermSums* out;

  /// This row's log-probabilities of the teacher.
  [[nodiscard]] __device__ TeacherRow<float> teacher(Dim row) const {
    if (!loss.has_teacher()) return {nullptr, 0};
    return {values + row * columns + loss.first_teacher, loss.teachers};
  }
  [[nodiscard]] __device__ float log_probability(Dim row, int j) const {
    return values[row * columns + loss.first_teacher + j];
  }
  [[nodiscard]] __device__ std::int32_t id(Dim row, int j) const {
    return teacher_ids[row * loss.teachers + j];
  }
};

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
  TermsCall terms;
};

/// Sum of probability times logit of the teacher's tokens that are here; every thread has it.
template <class T>
__device__ float teacher_logit(const TermsCall& terms, const Columns& columns, Dim row,
                               const T* x) {
  float sum = 0;
  if (!terms.loss.has_teacher()) return sum;
  const TeacherRow<float> teacher = terms.teacher(row);
  for (int j = 0; j < terms.loss.teachers; ++j) {
    const std::int32_t id = terms.id(row, j);
    if (!columns.is_here(id)) continue;
    sum += teacher.probability(terms.log_probability(row, j)) * to_real(x[id - columns.first]);
  }
  return sum;
}

/// Loss and derivatives of a row that counts. Real: float, or double for the loss itself.
template <bool kTerms, class Real, class T>
__device__ RowTerms<Real> terms_of(const LossCall<T>& call, Dim row, const RowTotal& total,
                                   float of_teacher) {
  const Real log_z = log(static_cast<Real>(total.exponentials)) + static_cast<Real>(total.largest);
  const RowLogits<Real> logits = {static_cast<Real>(total.target), static_cast<Real>(of_teacher),
                                  log_z};
  if constexpr (!kTerms) {
    return {TokenLoss(), nullptr, logits, Real(0)};
  } else {
    return {call.terms.loss, call.terms.values + row * call.terms.columns, logits,
            static_cast<Real>(call.terms.teacher(row).entropy)};
  }
}

/// One thread: the loss of a row that counts.
template <bool kTerms, class T>
__device__ void write_loss(const LossCall<T>& call, Dim row, std::int32_t target,
                           const RowTotal& total, float of_teacher) {
  const double log_z =
      log(static_cast<double>(total.exponentials)) + static_cast<double>(total.largest);
  const double z_loss = call.z_loss > 0 ? static_cast<double>(call.z_loss) * log_z * log_z : 0.0;
  const double target_loss = log_z - static_cast<double>(total.target);
  [[maybe_unused]] const float correct =
      total.target == total.largest && total.answer == static_cast<float>(target) ? 1.0F : 0.0F;
  if constexpr (kTerms) {
    const auto terms = terms_of<true, double>(call, row, total, of_teacher);
    call.out[row] = {terms.loss, static_cast<float>(terms.weight * z_loss), 1, correct};
    call.terms.out[row] = {static_cast<float>(terms.weight), static_cast<float>(terms.kl),
                           terms.clipped ? 1.0F : 0.0F, static_cast<float>(target_loss)};
  } else {
    call.out[row] = {target_loss, static_cast<float>(z_loss), 1, correct};
  }
}

/// One thread: a row that does not count; a target outside the vocabulary gives a loss that is not
/// a number, which finalize_step finds.
template <bool kTerms, class T>
__device__ void write_no_loss(const LossCall<T>& call, Dim row, std::int32_t target) {
  const double loss = target == kIgnoredTarget ? 0.0 : static_cast<double>(nanf(""));
  call.out[row] = {loss, 0, 0, 0};
  if constexpr (kTerms) call.terms.out[row] = {0, 0, 0, static_cast<float>(loss)};
}

/// Factors in the gradient: of e^(logit - largest), at the target and at the teacher's tokens.
struct RowFactors {
  float softmax;
  float target;
  float teacher;
};
template <bool kTerms, class T>
__device__ RowFactors factors_of(const LossCall<T>& call, Dim row, const RowTotal& total,
                                 float of_teacher, float scale) {
  float of_z = 1;
  if (call.z_loss > 0) {
    of_z += 2.0F * call.z_loss * (logf(total.exponentials) + total.largest);
  }
  if constexpr (!kTerms) {
    return {scale * of_z / total.exponentials, scale, 0};
  } else {
    const auto terms = terms_of<true, float>(call, row, total, of_teacher);
    const float softmax = terms.softmax + terms.weight * (of_z - 1.0F);
    return {scale * softmax / total.exponentials, scale * terms.target, scale * terms.teacher};
  }
}

}  // namespace hyperslab::ops::cuda
