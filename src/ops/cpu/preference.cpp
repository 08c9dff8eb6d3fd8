// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <span>

#include "../backend.hpp"
#include "hyperslab/core/batch.hpp"
#include "math.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// log(1 + e^x) without overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

bool is_of_chosen(std::int32_t pair) { return pair % 2 == 0; }

/// Counted targets of a sample's rows [begin, end), which are one pair's.
template <class T>
struct PairOfRows {
  const PairRows& rows;
  std::span<const std::int32_t> pairs;  ///< those of the sample
  Dim first;                            ///< row of the sample's first token

  [[nodiscard]] bool counts(Dim t) const {
    return rows.targets.data<std::int32_t>()[first + t] != kIgnoredTarget;
  }
  [[nodiscard]] std::int32_t at(Dim t) const { return pairs[static_cast<std::size_t>(t)]; }
  /// The first row of the next pair.
  [[nodiscard]] Dim end_of(Dim begin) const {
    Dim end = begin;
    while (end < std::ssize(pairs) && at(end) / 2 == at(begin) / 2) ++end;
    return end;
  }
  [[nodiscard]] double margin(Dim begin, Dim end) const {
    const Dim columns = rows.references.shape()[1];
    double sum = 0;
    for (Dim t = begin; t < end; ++t) {
      if (!counts(t)) continue;
      const Dim row = first + t;
      const double loss =
          static_cast<double>(rows.scores.template data<T>()[row * kTargetScoreCount + kScoreLoss]);
      const double reference =
          static_cast<double>(rows.references.data<float>()[row * columns + rows.reference]);
      sum += is_of_chosen(at(t)) ? -loss - reference : loss + reference;
    }
    return sum;
  }
};

struct PairSums {
  double loss = 0;
  double pairs = 0;
  double tokens = 0;
  double preferred = 0;
};

template <class T>
PairSums sample_pairs(const PairOfRows<T>& sample, double beta, float* weights) {
  PairSums sums;
  Dim begin = 0;
  while (begin < std::ssize(sample.pairs) && sample.at(begin) != kNoPair) {
    const Dim end = sample.end_of(begin);
    const double margin = sample.margin(begin, end);
    const double slope = beta / (1 + std::exp(beta * margin));
    sums.loss += softplus(-beta * margin);
    sums.pairs += 1;
    sums.preferred += margin > 0 ? 1 : 0;
    for (; begin < end; ++begin) {
      if (!sample.counts(begin)) continue;
      weights[begin] = static_cast<float>(is_of_chosen(sample.at(begin)) ? slope : -slope);
      sums.tokens += 1;
    }
  }
  return sums;
}

}  // namespace

void preference_loss(Context& /*ctx*/, const PairRows& rows, View weights, View sums) {
  constexpr const char* kName = "preference_loss";
  with_real(rows.scores.dtype(), kName, [&]<class T>(T) {
    const auto [samples, tokens] = rows.pairs.dims<2>(kName);
    std::ranges::fill(weights.span<float>(), 0.0F);
    PairSums all;
    for (Dim b = 0; b < samples; ++b) {
      const PairOfRows<T> sample = {rows, rows.pairs.slice(b, 1).span<std::int32_t>(), b * tokens};
      const PairSums of_sample =
          sample_pairs(sample, static_cast<double>(rows.beta), weights.data<float>() + b * tokens);
      all.loss += of_sample.loss;
      all.pairs += of_sample.pairs;
      all.tokens += of_sample.tokens;
      all.preferred += of_sample.preferred;
    }
    add_to_sums(sums, kSumLoss, all.loss);
    add_to_sums(sums, kSumWeights, all.pairs);
    add_to_sums(sums, kSumTokens, all.tokens);
    add_to_sums(sums, kSumMarked, all.preferred);
  });
}

}  // namespace hyperslab::ops::cpu
