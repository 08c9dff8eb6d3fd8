// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/loss.hpp"

#include <algorithm>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

constexpr double kStatisticFlops = 10;     // a logit's largest, difference, exponential, sum
constexpr double kScaleFlops = 2;          // a logit's gradient from its exponential
constexpr Dim kMostTokens = Dim{1} << 24;  // f32 holds every integer up to here

/// The names of an op and its operands in errors.
struct Names {
  const char* op;
  const char* logits;
  const char* targets;
  const char* scores;
  const char* sums;
  const char* z_loss;
  const char* state;
  const char* terms;
};
constexpr Names kCrossEntropy = {
    "softmax_cross_entropy",
    "softmax_cross_entropy logits",
    "softmax_cross_entropy targets",
    "softmax_cross_entropy scores",
    "softmax_cross_entropy sums",
    "softmax_cross_entropy z_loss: expected 0 or more",
    "softmax_cross_entropy state: the gradient needs the step's state",
    "softmax_cross_entropy terms: values or ids that the loss needs are missing"};
constexpr Names kStatistics = {"softmax_statistics",
                               "softmax_statistics logits",
                               "softmax_statistics targets",
                               "",
                               "",
                               "",
                               "",
                               "softmax_statistics terms"};
constexpr Names kVocabulary = {
    "vocabulary_cross_entropy",
    "vocabulary_cross_entropy logits",
    "vocabulary_cross_entropy targets",
    "vocabulary_cross_entropy scores",
    "vocabulary_cross_entropy sums",
    "vocabulary_cross_entropy z_loss: expected 0 or more",
    "vocabulary_cross_entropy state: the gradient needs the step's state",
    "vocabulary_cross_entropy terms: values or ids that the loss needs are missing"};

/// Returns N, the number of rows, after checking the operands that all losses read.
Dim require_logits(const Context& ctx, CView logits, const VocabularyShard& shard, CView targets,
                   const Names& names) {
  require_here(ctx, logits, names.logits);
  const auto [N, columns] = logits.dims<2>(names.logits);
  require_shard(shard, columns, names.op);
  require_operand(ctx, targets, {N}, DType::i32, names.targets);
  return N;
}

/// The values that the rows' loss reads.
void require_terms(const Context& ctx, const TokenTerms& terms, Dim N, const Names& names) {
  const TokenLoss& loss = terms.loss;
  if (!terms.values) {
    require(loss.objective == TokenObjective::cross_entropy && !loss.has_teacher(), names.terms);
    return;
  }
  require_here(ctx, terms.values, names.terms);
  const auto [rows, columns] = terms.values.dims<2>(names.terms);
  require_operand(ctx, terms.values, {N, columns}, DType::f32, names.terms);
  const bool clipped = loss.objective == TokenObjective::clipped;
  const auto lies = [&, columns = columns](int column, bool needed) {
    require(column < columns && (column >= 0 || !needed), names.terms);
  };
  lies(loss.weight, false);
  lies(loss.old_log_probability, clipped);
  lies(loss.advantage, clipped);
  lies(loss.reference, false);
  if (!loss.has_teacher()) return;
  require(loss.teachers <= kMostTeachers, names.terms);
  lies(loss.first_teacher, true);
  lies(loss.first_teacher + loss.teachers - 1, true);
  require_operand(ctx, terms.teacher_ids, {N, loss.teachers}, DType::i32, names.terms);
}

void require_results(const Context& ctx, const LossRows& rows, const StepState* state,
                     WithGradient gradient, CView sums, const Names& names) {
  if (rows.scores) {
    require_operand(ctx, rows.scores, {rows.logits.shape()[0], kTargetScoreCount},
                    statistic_dtype(rows.logits.dtype()), names.scores);
  }
  require_sums(ctx, sums, names.sums);
  require_terms(ctx, rows.terms, rows.logits.shape()[0], names);
  require(rows.z_loss >= 0, names.z_loss);
  require(gradient == WithGradient::no || state != nullptr || ctx.device() == Device::meta,
          names.state);
}

double elements(Dim N, const VocabularyShard& shard) {
  return static_cast<double>(N) * static_cast<double>(shard.count);
}

std::size_t workspace(const Context& ctx, Dim N, const LossRows& rows) {
  return workspace_for(ctx, cpu::loss_workspace(ctx.threads()),
                       cuda::loss_workspace(N, static_cast<bool>(rows.terms.values)));
}

}  // namespace

void softmax_cross_entropy(Context& ctx, const LossRows& rows, const StepState* state,
                           WithGradient gradient, View sums) {
  const auto& [logits, shard, targets, scores, z_loss, terms] = rows;
  const Dim N = require_logits(ctx, logits, shard, targets, kCrossEntropy);
  require(shard.first == 0 && shard.count == shard.vocabulary,
          "softmax_cross_entropy shard: expected the whole vocabulary");
  require_results(ctx, rows, state, gradient, sums, kCrossEntropy);
  const double flops = kStatisticFlops + (gradient == WithGradient::yes ? kScaleFlops : 0);
  if (on_meta(ctx, kCrossEntropy.op, flops * elements(N, shard),
              {logits, targets, scores, sums, terms.values, terms.teacher_ids},
              workspace(ctx, N, rows))) {
    return;
  }
  dispatch<cuda::softmax_cross_entropy, cpu::softmax_cross_entropy>(ctx, rows, state, gradient,
                                                                    sums);
}

void softmax_statistics(Context& ctx, const LossRows& rows, View statistics) {
  const auto& [logits, shard, targets, scores, z_loss, terms] = rows;
  const Dim N = require_logits(ctx, logits, shard, targets, kStatistics);
  const DType dtype = statistic_dtype(logits.dtype());
  require_terms(ctx, terms, N, kStatistics);
  require_operand(ctx, statistics, {N, row_statistics(terms.loss)}, dtype,
                  "softmax_statistics statistics");
  require(dtype == DType::f64 || shard.vocabulary <= kMostTokens,
          "softmax_statistics shard: f32 does not hold every token of the vocabulary");
  if (on_meta(ctx, kStatistics.op, kStatisticFlops * elements(N, shard),
              {CView(logits), targets, statistics, terms.values, terms.teacher_ids})) {
    return;
  }
  dispatch<cuda::softmax_statistics, cpu::softmax_statistics>(ctx, rows, statistics);
}

void vocabulary_cross_entropy(Context& ctx, const LossRows& rows, CView gathered,
                              const StepState* state, WithGradient gradient, View sums) {
  const auto& [logits, shard, targets, scores, z_loss, terms] = rows;
  const Dim N = require_logits(ctx, logits, shard, targets, kVocabulary);
  require_here(ctx, gathered, "vocabulary_cross_entropy gathered");
  const Dim ranks = gathered.dims<3>("vocabulary_cross_entropy gathered")[0];
  require_operand(ctx, gathered, {std::max<Dim>(1, ranks), N, row_statistics(terms.loss)},
                  statistic_dtype(logits.dtype()), "vocabulary_cross_entropy gathered");
  require_results(ctx, rows, state, gradient, sums, kVocabulary);
  const bool writes = gradient == WithGradient::yes;
  const double flops = kStatisticFlops * static_cast<double>(N * ranks) +
                       (writes ? (kStatisticFlops + kScaleFlops) * elements(N, shard) : 0);
  if (on_meta(ctx, kVocabulary.op, flops,
              {writes ? CView(logits) : CView(), targets, gathered, scores, sums, terms.values,
               terms.teacher_ids},
              workspace(ctx, N, rows))) {
    return;
  }
  dispatch<cuda::vocabulary_cross_entropy, cpu::vocabulary_cross_entropy>(ctx, rows, gathered,
                                                                          state, gradient, sums);
}

void preference_loss(Context& ctx, const PairRows& rows, View weights, View sums) {
  constexpr const char* kName = "preference_loss";
  require_here(ctx, rows.pairs, "preference_loss pairs");
  const auto [B, T] = rows.pairs.dims<2>("preference_loss pairs");
  require_operand(ctx, rows.pairs, {B, T}, DType::i32, "preference_loss pairs");
  const Dim N = B * T;
  require_operand(ctx, rows.targets, {N}, DType::i32, "preference_loss targets");
  require_here(ctx, rows.scores, "preference_loss scores");
  require_operand(ctx, rows.scores, {N, kTargetScoreCount}, statistic_dtype(rows.scores.dtype()),
                  "preference_loss scores");
  require_here(ctx, rows.references, "preference_loss references");
  const Dim columns = rows.references.dims<2>("preference_loss references")[1];
  require_operand(ctx, rows.references, {N, columns}, DType::f32, "preference_loss references");
  require(rows.reference >= 0 && rows.reference < columns && rows.beta > 0,
          "preference_loss: expected a column of the references and a beta above 0");
  require_operand(ctx, weights, {N, 1}, DType::f32, "preference_loss weights");
  require_sums(ctx, sums, "preference_loss sums");
  if (on_meta(ctx, kName, 8 * static_cast<double>(N),
              {rows.scores, rows.references, rows.targets, rows.pairs, weights, sums},
              workspace_for(ctx, 0, cuda::preference_workspace(B)))) {
    return;
  }
  dispatch<cuda::preference_loss, cpu::preference_loss>(ctx, rows, weights, sums);
}

}  // namespace hyperslab::ops
