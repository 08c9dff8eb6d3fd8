// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <type_traits>

#include "bf16_support.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/classes.hpp"
#include "hyperslab/ops/dropout.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/experts.hpp"
#include "hyperslab/ops/head_norm.hpp"
#include "hyperslab/ops/image.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/muon.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/ops/quantized.hpp"
#include "hyperslab/ops/step_state.hpp"
#include "hyperslab/ops/token_position.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops::cpu {

template <class Operand, class... Others>
inline constexpr bool kIsOneOf = (std::is_same_v<Operand, Others> || ...);
/// Operands that hold no elements, or none that may be in bf16: those of the last six are codes,
/// tables and statistics.
template <class Operand>
inline constexpr bool kHoldsNoElements =
    std::is_arithmetic_v<Operand> || std::is_enum_v<Operand> || std::is_pointer_v<Operand> ||
    kIsOneOf<Operand, HeadLayout, VocabularyShard, TokenPosition, Dropout, StepInput, ProductScales,
             PooledRows, NormalSpec, ImageOutput, FinalizeConstants, RouterRule, RouterLosses,
             CQuantizedMatrix, RotaryTables, SortedTokens, RowPart, RouterGradient, PairRows>;

/// Lets the CPU's ops, which compute in f32 and f64, take operands stored in bf16: it hands
/// an op f32 copies of them, and rounds the copies of those that the op may have written back to
/// nearest, ties to even. Sums and statistics inside the op are so in f32. Views of the same
/// elements share one copy, so ops work in place as they do in f32. Views of other dtypes pass
/// through. Copies live in memory of the calling thread that later ops use again.
class WideOperands {
 public:
  explicit WideOperands(int threads) : threads_(threads) {}

  [[nodiscard]] View operator()(const View& view);
  [[nodiscard]] CView operator()(const CView& view);
  [[nodiscard]] Columns operator()(const Columns& columns);
  [[nodiscard]] CColumns operator()(const CColumns& columns);
  [[nodiscard]] NormOperands operator()(const NormOperands& operands);
  [[nodiscard]] NormResults operator()(const NormResults& results);
  [[nodiscard]] NormSaved operator()(const NormSaved& saved);
  [[nodiscard]] NormGradients operator()(const NormGradients& gradients);
  [[nodiscard]] HeadNormWeights operator()(const HeadNormWeights& weights);
  [[nodiscard]] HeadNormSaved operator()(const HeadNormSaved& saved);
  [[nodiscard]] HeadNormGradients operator()(const HeadNormGradients& gradients);
  [[nodiscard]] AttentionScores operator()(const AttentionScores& scores);
  [[nodiscard]] AttentionSaved operator()(const AttentionSaved& saved);
  [[nodiscard]] AttentionGradients operator()(const AttentionGradients& gradients);
  template <class V>
  [[nodiscard]] HeadsOf<V> operator()(const HeadsOf<V>& heads) {
    return {(*this)(heads.base), heads.first, heads.heads, heads.width};
  }
  [[nodiscard]] AttentionOperands operator()(const AttentionOperands& operands);
  [[nodiscard]] AttentionPart operator()(const AttentionPart& part);
  [[nodiscard]] AttentionOperandGradients operator()(const AttentionOperandGradients& gradients);
  [[nodiscard]] ActivationGradients operator()(const ActivationGradients& gradients);
  [[nodiscard]] AttentionReferenceSaved operator()(const AttentionReferenceSaved& saved);
  [[nodiscard]] KeyValueCache operator()(const KeyValueCache& cache);
  [[nodiscard]] EmbeddingTables operator()(const EmbeddingTables& tables);
  [[nodiscard]] LossRows operator()(const LossRows& rows);
  [[nodiscard]] ClassRows operator()(const ClassRows& rows);
  [[nodiscard]] WeightedRows operator()(const WeightedRows& rows);
  /// Operands without elements in bf16.
  template <class Operand>
  [[nodiscard]] const Operand& operator()(const Operand& operand) {
    static_assert(kHoldsNoElements<Operand>,
                  "a struct with views needs an overload; kHoldsNoElements names those without");
    return operand;
  }

  /// Rounds the operands that the op may have written.
  void round_results() const;

 private:
  struct Copy {
    CView narrow{};
    void* written = nullptr;  ///< destination of the rounded elements; null: only read
    float* wide = nullptr;
  };
  static constexpr std::size_t kMostCopies = 12;  ///< copies of one op's operands
  Copy& copy_of(const CView& view);
  [[nodiscard]] std::span<const Copy> copies() const { return {copies_.data(), count_}; }

  int threads_;
  std::array<Copy, kMostCopies> copies_{};  // a step allocates nothing
  std::size_t count_ = 0;
};

/// True if an op is the update of an optimizer, which knows gradients, values and moments in bf16.
template <class Op>
inline constexpr bool kIsUpdate = false;
template <class... Operands>
inline constexpr bool kIsUpdate<void (*)(Operands...)> =
    // NOLINTNEXTLINE(misc-redundant-expression): of two operands of one type
    (std::is_same_v<Operands, const UpdateOperands&> || ...);

/// Ops that know bf16 themselves, or have no operand that may be in it.
template <auto cpu_op>
inline constexpr bool kTakesBf16 = kIsUpdate<decltype(cpu_op)>;

/// Products that know bf16 themselves if the processor does: has_bf16_products().
template <auto cpu_op>
inline constexpr bool kMultipliesBf16 = false;

/// Calls the CPU's twin of an op, with f32 copies of operands in bf16 unless it takes these.
template <auto cpu_op, class... Operands>
void call(Context& ctx, const Operands&... operands) {
  if constexpr (kTakesBf16<cpu_op>) {
    cpu_op(ctx, operands...);
  } else {
    if constexpr (kMultipliesBf16<cpu_op>) {
      if (has_bf16_products()) return cpu_op(ctx, operands...);
    }
    // Ops without views leave it as it is.
    WideOperands wide(ctx.threads());  // NOLINT(misc-const-correctness)
    cpu_op(ctx, wide(operands)...);
    wide.round_results();
  }
}

}  // namespace hyperslab::ops::cpu
