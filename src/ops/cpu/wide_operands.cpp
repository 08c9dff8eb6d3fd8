// SPDX-License-Identifier: Apache-2.0
#include "wide_operands.hpp"

#include <vector>

#include "bf16_rounding.hpp"
#include "hyperslab/core/arena.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// Memory for the copy with this number among one op's copies; it grows to the largest asked for.
float* copy_memory(std::size_t number, Dim count) {
  thread_local std::vector<Buffer> memory;
  if (memory.size() <= number) memory.resize(number + 1);
  Buffer& buffer = memory[number];
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (buffer.bytes() < bytes) {
    buffer = Buffer();  // the old memory goes first
    buffer = Buffer(Device::cpu, bytes);
  }
  return static_cast<float*>(buffer.data());
}

bool is_stored_in_bf16(const CView& view) { return view && view.dtype() == DType::bf16; }

}  // namespace

WideOperands::Copy& WideOperands::copy_of(const CView& view) {
  for (Copy& copy : std::span(copies_).first(count_)) {
    if (copy.narrow.raw() == view.raw() && copy.narrow.numel() == view.numel()) return copy;
  }
  const bf16* from = view.data<bf16>();
  require(count_ < kMostCopies, "bf16 operands: an op has more of them than there are copies");
  float* to = copy_memory(count_, view.numel());
  parallel_chunks(threads_, view.numel(), 1,
                  [=](int, Dim begin, Dim end) { widen(from + begin, end - begin, to + begin); });
  return copies_[count_++] = Copy{view, nullptr, to};
}

void WideOperands::round_results() const {
  for (const Copy& copy : copies()) {
    if (copy.written == nullptr) continue;
    const float* from = copy.wide;
    auto* to = static_cast<bf16*>(copy.written);
    parallel_chunks(threads_, copy.narrow.numel(), 1, [=](int, Dim begin, Dim end) {
      round_to_bf16(from + begin, end - begin, to + begin);
    });
  }
}

CView WideOperands::operator()(const CView& view) {
  if (!is_stored_in_bf16(view)) return view;
  return {copy_of(view).wide, DType::f32, Device::cpu, view.shape()};
}

View WideOperands::operator()(const View& view) {
  if (!is_stored_in_bf16(view)) return view;
  Copy& copy = copy_of(view);
  copy.written = view.raw();
  return {copy.wide, DType::f32, Device::cpu, view.shape()};
}

Columns WideOperands::operator()(const Columns& columns) {
  Columns wide = columns;
  wide.matrix = (*this)(columns.matrix);
  return wide;
}

CColumns WideOperands::operator()(const CColumns& columns) {
  CColumns wide = columns;
  wide.matrix = (*this)(columns.matrix);
  return wide;
}

NormOperands WideOperands::operator()(const NormOperands& operands) {
  const auto& [residual, delta, weight, bias, eps] = operands;
  return {(*this)(residual), (*this)(delta), (*this)(weight), (*this)(bias), eps};
}

NormResults WideOperands::operator()(const NormResults& results) {
  const auto& [sum, y, mean, rstd] = results;
  return {(*this)(sum), (*this)(y), mean, rstd};
}

NormSaved WideOperands::operator()(const NormSaved& saved) {
  const auto& [sum, weight, mean, rstd] = saved;
  return {(*this)(sum), (*this)(weight), mean, rstd};
}

NormGradients WideOperands::operator()(const NormGradients& gradients) {
  NormGradients wide = gradients;
  wide.dsum = (*this)(gradients.dsum);
  wide.dweight = (*this)(gradients.dweight);
  wide.dbias = (*this)(gradients.dbias);
  wide.arriving_sums = (*this)(gradients.arriving_sums);
  wide.leaving_sums = (*this)(gradients.leaving_sums);
  return wide;
}

HeadNormWeights WideOperands::operator()(const HeadNormWeights& weights) {
  return {(*this)(weights.query), (*this)(weights.key), weights.eps};
}

HeadNormGradients WideOperands::operator()(const HeadNormGradients& gradients) {
  HeadNormGradients wide = gradients;
  wide.query = (*this)(gradients.query);
  wide.key = (*this)(gradients.key);
  return wide;
}

HeadNormSaved WideOperands::operator()(const HeadNormSaved& saved) {
  return {(*this)(saved.heads), saved.rstd};
}

AttentionScores WideOperands::operator()(const AttentionScores& scores) {
  AttentionScores wide = scores;
  wide.sinks.logits = (*this)(scores.sinks.logits);
  return wide;
}

AttentionSaved WideOperands::operator()(const AttentionSaved& saved) {
  return {(*this)(saved.qkv), (*this)(saved.out), saved.log_sum_exp};
}

AttentionGradients WideOperands::operator()(const AttentionGradients& gradients) {
  return {(*this)(gradients.dqkv), (*this)(gradients.dbias), gradients.accumulate_bias};
}

AttentionOperands WideOperands::operator()(const AttentionOperands& operands) {
  const auto& [q, k, v, first_query] = operands;
  return {(*this)(q), (*this)(k), (*this)(v), first_query};
}

AttentionPart WideOperands::operator()(const AttentionPart& part) {
  return {(*this)(part.out), part.log_sum_exp};
}

AttentionOperandGradients WideOperands::operator()(const AttentionOperandGradients& gradients) {
  return {(*this)(gradients.dq), (*this)(gradients.dk), (*this)(gradients.dv)};
}

ActivationGradients WideOperands::operator()(const ActivationGradients& gradients) {
  return {(*this)(gradients.dpre), (*this)(gradients.dbias), gradients.accumulate_bias};
}

AttentionReferenceSaved WideOperands::operator()(const AttentionReferenceSaved& saved) {
  return {(*this)(saved.qkv), (*this)(saved.probabilities), saved.dropout};
}

KeyValueCache WideOperands::operator()(const KeyValueCache& cache) {
  return {(*this)(cache.keys), (*this)(cache.values), cache.past, cache.pages};
}

EmbeddingTables WideOperands::operator()(const EmbeddingTables& tables) {
  EmbeddingTables wide = tables;
  wide.table = (*this)(tables.table);
  wide.positions = (*this)(tables.positions);
  return wide;
}

WeightedRows WideOperands::operator()(const WeightedRows& rows) {
  return {(*this)(rows.pre), (*this)(rows.weights), (*this)(rows.used)};
}

LossRows WideOperands::operator()(const LossRows& rows) {
  LossRows wide = rows;
  wide.logits = (*this)(rows.logits);
  return wide;
}

ClassRows WideOperands::operator()(const ClassRows& rows) {
  ClassRows wide = rows;
  wide.logits = (*this)(rows.logits);
  return wide;
}

}  // namespace hyperslab::ops::cpu
