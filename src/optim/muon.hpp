// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "hyperslab/ops/muon.hpp"
#include "hyperslab/optim/optimizer.hpp"

namespace hyperslab::optim {

/// Muon (Jordan et al. 2024) for the blocks' matrices, each alone: query, key and value apart, gate
/// and up apart. The update is the orthogonalized Nesterov momentum times 0.2 sqrt(max(rows,
/// columns)), so that one learning rate serves both (Liu et al. 2025, "Muon is scalable", section
/// 2.2). Everything else is updated by AdamW.
///
/// exp_avg is the momentum of the matrices too, the same average of gradients; their part of
/// exp_avg_sq stays zero.
class Muon final : public Optimizer {
 public:
  Muon(const OptimizerConfig& config, const param::ParamGroup& group, bool sharded, Arena& arena);
  [[nodiscard]] Granularity granularity() const override { return Granularity::matrix; }
  [[nodiscard]] std::vector<State> state() const override;
  [[nodiscard]] ops::FinalizeConstants finalize_constants() const override;

 private:
  void update_range(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                    const param::ElementRange& range) const override;
  void update_matrix(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                     Dim begin, const param::Param& matrix) const;
  /// By AdamW the elements from `from` to `to` of the flat space, of which `operands` has those
  /// from `begin`.
  void update_others(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                     Dim begin, const std::array<Dim, 2>& from_to) const;

  param::StateView exp_avg_;
  param::StateView exp_avg_sq_;
  std::vector<const param::Param*> matrices_;  ///< in the order of the flat space
  View direction_;                             ///< of the largest matrix's size
  ops::OrthogonalizeSpace space_;
};

}  // namespace hyperslab::optim
