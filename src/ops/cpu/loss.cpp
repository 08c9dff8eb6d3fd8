// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../backend.hpp"
#include "../row_terms.hpp"
#include "math.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kSearchBlock = 512;  // columns among which the first of the largest is looked for

/// One chunk's sums, alone on its cache line.
struct alignas(64) LossSums {
  double loss = 0;
  double z_loss = 0;
  double tokens = 0;
  double correct = 0;
  double weights = 0;
  double kl = 0;
  double clipped = 0;
  double target_loss = 0;  ///< a row's score

  void operator+=(const LossSums& row) {
    loss += row.loss;
    z_loss += row.z_loss;
    tokens += row.tokens;
    correct += row.correct;
    weights += row.weights;
    kl += row.kl;
    clipped += row.clipped;
  }
};

/// The statistics of a row of logits that its loss needs; the fields of RowStatistic.
template <class T>
struct RowTotal {
  T largest;
  T exponentials;
  T target;
  Dim answer;
  T teacher = 0;  ///< RowStatistic::kRowTeacher
};

void require_targets(std::span<const std::int32_t> targets, Dim V, const char* op) {
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const std::int32_t target = targets[row];
    if (target != kIgnoredTarget && (target < 0 || target >= V)) {
      throw Error(ExitCode::data, std::string(op) + " targets: row " + std::to_string(row) +
                                      " holds token " + std::to_string(target) +
                                      ", expected less than " + std::to_string(V) +
                                      "; compare model.vocabulary with the token files");
    }
  }
}

template <class T>
constexpr T kNothing = -std::numeric_limits<T>::infinity();

/// The largest logit, and of equal ones the first.
template <class T>
struct Largest {
  T value = kNothing<T>;
  Dim column = 0;
};
template <class T>
Largest<T> largest(const T* x, Dim count) {
  Largest<T> found;
  for (Dim begin = 0; begin < count; begin += kSearchBlock) {
    const Dim end = std::min(count, begin + kSearchBlock);
    T top = kNothing<T>;
#pragma omp simd reduction(max : top)
    for (Dim i = begin; i < end; ++i) top = x[i] > top ? x[i] : top;
    if (top > found.value) found = {top, begin};
  }
  if (found.value == kNothing<T>) return found;
  const T* first = x + found.column;
  found.column = std::find(first, x + count, found.value) - x;
  return found;
}

/// The sum of e^(x - shift); if `terms` is not null the terms are stored there, which may be x.
template <class T>
T sum_of_exponentials(const T* x, Dim count, T shift, T* terms) {
  T sum = 0;
  if (terms != nullptr) {
#pragma omp simd reduction(+ : sum)
    for (Dim i = 0; i < count; ++i) {
      const T term = exponential(x[i] - shift);
      terms[i] = term;
      sum += term;
    }
  } else {
#pragma omp simd reduction(+ : sum)
    for (Dim i = 0; i < count; ++i) sum += exponential(x[i] - shift);
  }
  return sum;
}

/// The column of a token of this shard, else -1.
Dim column_of(const VocabularyShard& shard, std::int32_t token) {
  const Dim column = token - shard.first;
  return column >= 0 && column < shard.count ? column : -1;
}

template <class T>
RowTotal<T> total_of_row(const T* x, const VocabularyShard& shard, std::int32_t target, T* terms) {
  if (shard.count == 0) return {kNothing<T>, T(0), kNothing<T>, shard.vocabulary};
  const Dim column = column_of(shard, target);
  const T at_target = column < 0 ? kNothing<T> : x[column];
  const Largest<T> top = largest(x, shard.count);
  // Logits that are all -infinity add nothing, but one that is not a number shows.
  const T shift = top.value == kNothing<T> ? T(0) : top.value;
  const T sum = sum_of_exponentials(x, shard.count, shift, terms);
  return {top.value, sum, at_target, shard.first + top.column};
}

/// The whole row from the statistics of all ranks, `stride` elements from one to the next.
template <class T>
RowTotal<T> total_of_ranks(const T* statistics, Dim ranks, Dim stride, Dim vocabulary) {
  RowTotal<T> total = {kNothing<T>, T(0), kNothing<T>, vocabulary};
  for (Dim rank = 0; rank < ranks; ++rank) {
    const T* of_rank = statistics + rank * stride;
    total.largest = std::max(total.largest, of_rank[kRowLargest]);
    total.target = std::max(total.target, of_rank[kRowTarget]);
  }
  for (Dim rank = 0; rank < ranks; ++rank) {
    const T* of_rank = statistics + rank * stride;
    const bool leads = of_rank[kRowLargest] == total.largest;
    const T factor = leads ? T(1) : std::exp(of_rank[kRowLargest] - total.largest);
    total.exponentials += of_rank[kRowExponentials] * factor;
    if (leads) total.answer = std::min(total.answer, static_cast<Dim>(of_rank[kRowAnswer]));
  }
  return total;
}

/// log(Z).
template <class T>
double log_normalizer(const RowTotal<T>& total) {
  return std::log(static_cast<double>(total.exponentials)) + static_cast<double>(total.largest);
}

/// The values of one row's target, as TokenTerms has them.
struct RowValues {
  const float* values = nullptr;  ///< null: the loss is minus the target's log-probability
  const std::int32_t* teacher_ids = nullptr;
  TokenLoss loss;

  RowValues(const TokenTerms& terms, Dim row) : loss(terms.loss) {
    if (terms.values) values = terms.values.data<float>() + row * terms.values.shape()[1];
    if (loss.has_teacher())
      teacher_ids = terms.teacher_ids.data<std::int32_t>() + row * loss.teachers;
  }
  [[nodiscard]] TeacherRow<double> teacher() const {
    return {loss.has_teacher() ? values + loss.first_teacher : nullptr,
            loss.has_teacher() ? loss.teachers : 0};
  }
  /// Calls body(column, probability) for the teacher's tokens of this shard.
  template <class Body>
  void each_teacher(const VocabularyShard& shard, Body&& body) const {
    if (!loss.has_teacher()) return;
    const TeacherRow<double> row = teacher();
    for (int j = 0; j < loss.teachers; ++j) {
      const Dim column = column_of(shard, teacher_ids[j]);
      if (column >= 0) body(column, row.probability(values[loss.first_teacher + j]));
    }
  }
  template <class T>
  [[nodiscard]] T teacher_logit(const VocabularyShard& shard, const T* x) const {
    double sum = 0;
    each_teacher(shard, [&](Dim column, double q) { sum += q * static_cast<double>(x[column]); });
    return static_cast<T>(sum);
  }
  template <class T>
  [[nodiscard]] RowTerms<double> terms(const RowTotal<T>& total) const {
    const RowLogits<double> logits = {static_cast<double>(total.target),
                                      static_cast<double>(total.teacher), log_normalizer(total)};
    return {values == nullptr ? TokenLoss() : loss, values, logits, teacher().entropy};
  }
};

/// The terms that one row adds to the sums.
template <class T>
LossSums sums_of_row(const RowTotal<T>& total, std::int32_t target, const LossRows& rows,
                     const RowTerms<double>& terms) {
  const double log_z = log_normalizer(total);
  const double z = static_cast<double>(rows.z_loss);
  return {.loss = terms.loss,
          .z_loss = z > 0 ? terms.weight * z * log_z * log_z : 0,
          .tokens = 1,
          .correct = total.target == total.largest && total.answer == target ? 1.0 : 0.0,
          .weights = terms.weight,
          .kl = terms.kl,
          .clipped = terms.clipped ? 1.0 : 0.0,
          .target_loss = log_z - static_cast<double>(total.target)};
}

/// Exponentials become dlogits.
template <class T>
void scale_row(T* x, const LossRows& rows, std::int32_t target, const RowTotal<T>& total,
               const RowValues& values, const RowTerms<double>& terms, T scale) {
  const VocabularyShard& shard = rows.shard;
  const auto of_scale = static_cast<double>(scale);
  const double of_z = 2 * static_cast<double>(rows.z_loss);
  const double softmax =
      of_z > 0 ? terms.softmax + terms.weight * of_z * log_normalizer(total) : terms.softmax;
  const T factor = static_cast<T>(of_scale * softmax) / total.exponentials;
#pragma omp simd
  for (Dim i = 0; i < shard.count; ++i) x[i] *= factor;
  const Dim column = column_of(shard, target);
  if (column >= 0) x[column] -= static_cast<T>(of_scale * terms.target);
  values.each_teacher(shard, [&](Dim of_teacher, double q) {
    x[of_teacher] -= static_cast<T>(of_scale * terms.teacher * q);
  });
}

/// Calls body(x, row, target) for every row that counts, and adds its results to `sums`; with
/// gradient, ignored rows and columns of padding are cleared.
template <class T, class Row>
void each_row(Context& ctx, const char* op, const LossRows& rows, bool gradient, View sums,
              Row&& body) {
  const auto [N, columns] = rows.logits.dims<2>("loss logits");
  const int threads = ctx.threads();
  auto* partial = static_cast<LossSums*>(ctx.workspace(op, loss_workspace(threads)));
  std::fill_n(partial, threads, LossSums());
  const auto* target = rows.targets.data<std::int32_t>();
  T* data = rows.logits.data<T>();
  T* scores = rows.scores ? rows.scores.data<T>() : nullptr;
  parallel_chunks(threads, N, 8 * columns, [&, columns = columns](int chunk, Dim begin, Dim end) {
    LossSums chunk_sums;
    for (Dim row = begin; row < end; ++row) {
      T* x = data + row * columns;
      const bool counts = target[row] != kIgnoredTarget;
      const LossSums of_row = counts ? body(x, row, target[row]) : LossSums();
      chunk_sums += of_row;
      if (scores != nullptr) {
        scores[row * kTargetScoreCount + kScoreLoss] = static_cast<T>(of_row.target_loss);
        scores[row * kTargetScoreCount + kScoreIsAnswer] = static_cast<T>(of_row.correct);
      }
      const Dim clear_from = counts ? rows.shard.count : 0;
      if (gradient) std::fill(x + clear_from, x + columns, T(0));
    }
    partial[chunk] = chunk_sums;
  });
  for (int chunk = 0; chunk < threads; ++chunk) {
    add_to_sums(sums, kSumLoss, partial[chunk].loss);
    add_to_sums(sums, kSumZLoss, partial[chunk].z_loss);
    add_to_sums(sums, kSumTokens, partial[chunk].tokens);
    add_to_sums(sums, kSumCorrect, partial[chunk].correct);
    add_to_sums(sums, kSumWeights, partial[chunk].weights);
    add_to_sums(sums, kSumKl, partial[chunk].kl);
    add_to_sums(sums, kSumMarked, partial[chunk].clipped);
  }
}

}  // namespace

std::size_t loss_workspace(int threads) {
  return static_cast<std::size_t>(threads) * sizeof(LossSums);
}

void softmax_cross_entropy(Context& ctx, const LossRows& rows, const StepState* state,
                           WithGradient gradient, View sums) {
  const VocabularyShard& shard = rows.shard;
  constexpr const char* kName = "softmax_cross_entropy";
  require_targets(rows.targets.span<std::int32_t>(), shard.vocabulary, kName);
  with_real(rows.logits.dtype(), kName, [&]<class T>(T) {
    const bool writes = gradient == WithGradient::yes;
    const T scale = writes ? T(state->gradient_scale) : T(0);
    each_row<T>(ctx, kName, rows, writes, sums, [&](T* x, Dim row, std::int32_t target) {
      const RowValues values(rows.terms, row);
      const T of_teacher = values.teacher_logit(shard, x);
      auto total = total_of_row(x, shard, target, writes ? x : nullptr);
      total.teacher = of_teacher;
      const RowTerms<double> terms = values.terms(total);
      if (writes) scale_row(x, rows, target, total, values, terms, scale);
      return sums_of_row(total, target, rows, terms);
    });
  });
}

void softmax_statistics(Context& ctx, const LossRows& rows, View statistics) {
  constexpr const char* kName = "softmax_statistics";
  const VocabularyShard& shard = rows.shard;
  const auto targets = rows.targets.span<std::int32_t>();
  require_targets(targets, shard.vocabulary, kName);
  with_real(rows.logits.dtype(), kName, [&]<class T>(T) {
    const auto [N, columns] = rows.logits.dims<2>(kName);
    const Dim width = statistics.shape()[1];
    const auto each = [&, columns = columns](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        const std::int32_t target = targets[static_cast<std::size_t>(row)];
        const T* x = rows.logits.data<T>() + row * columns;
        const auto total = total_of_row<T>(x, shard, target, nullptr);
        T* out = statistics.data<T>() + row * width;
        out[kRowLargest] = total.largest;
        out[kRowExponentials] = total.exponentials;
        out[kRowTarget] = total.target;
        out[kRowAnswer] = static_cast<T>(total.answer);
        if (width > kRowTeacher) {
          const bool counts = target != kIgnoredTarget;
          out[kRowTeacher] = counts ? RowValues(rows.terms, row).teacher_logit(shard, x) : T(0);
        }
      }
    };
    parallel_chunks(ctx.threads(), N, 8 * columns, each);
  });
}

void vocabulary_cross_entropy(Context& ctx, const LossRows& rows, CView gathered,
                              const StepState* state, WithGradient gradient, View sums) {
  const VocabularyShard& shard = rows.shard;
  constexpr const char* kName = "vocabulary_cross_entropy";
  require_targets(rows.targets.span<std::int32_t>(), shard.vocabulary, kName);
  with_real(rows.logits.dtype(), kName, [&]<class T>(T) {
    const bool writes = gradient == WithGradient::yes;
    const T scale = writes ? T(state->gradient_scale) : T(0);
    const Dim ranks = gathered.shape()[0];
    const Dim width = gathered.shape()[2];
    const Dim stride = gathered.shape()[1] * width;
    const T* statistics = gathered.data<T>();
    each_row<T>(ctx, kName, rows, writes, sums, [&](T* x, Dim row, std::int32_t target) {
      const RowValues values(rows.terms, row);
      auto total = total_of_ranks(statistics + row * width, ranks, stride, shard.vocabulary);
      if (width > kRowTeacher) {
        for (Dim rank = 0; rank < ranks; ++rank) {
          total.teacher += statistics[rank * stride + row * width + kRowTeacher];
        }
      }
      const RowTerms<double> terms = values.terms(total);
      if (writes) {
        (void)sum_of_exponentials(x, shard.count, total.largest, x);
        scale_row(x, rows, target, total, values, terms, scale);
      }
      return sums_of_row(total, target, rows, terms);
    });
  });
}

}  // namespace hyperslab::ops::cpu
