// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/ops/muon.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "matrix_exchange.hpp"

namespace hyperslab::optim {

/// Muon (Jordan et al. 2024) for the blocks' matrices, each alone: query, key and value apart, gate
/// and up apart. The update is the orthogonalized Nesterov momentum times 0.2 sqrt(max(rows,
/// columns)), so that one learning rate serves both (Liu et al. 2025, "Muon is scalable", section
/// 2.2). Everything else is updated by AdamW.
///
/// A whole matrix is orthogonalized by its owner, one rank of the data and tensor groups, which
/// share this work by its cost; masters and state are held and updated in the parts that the
/// residence gives to ranks. exp_avg is the momentum of the matrices too, the same average
/// of gradients; their part of exp_avg_sq stays zero.
///
/// Products are in bf16 where the run computes in 16 bits, as torch.optim.Muon's, else in
/// the masters' dtype.
class Muon final : public Optimizer {
 public:
  Muon(const OptimizerConfig& config, const param::ParamGroup& group, const StatePlace& place,
       const UpdateGroups& groups);
  [[nodiscard]] ops::FinalizeConstants finalize_constants() const override;
  /// The matrices.
  void update_whole(Context& ctx, const ops::StepState* state,
                    const param::StateView& gradients) const override;

 private:
  [[nodiscard]] std::vector<State> moments() const override;
  /// All else.
  void update_range(Context& ctx, const ops::StepState* state, const ops::UpdateOperands& operands,
                    std::span<const View> moments, const param::ElementRange& range) const override;
  /// The scale of the orthogonal update of every matrix of a batch.
  [[nodiscard]] float scale_of(const View& batch) const;
  void take_space(Arena& arena);
  void update_round(Context& ctx, const ops::StepState* state, const param::StateView& gradients,
                    const MatrixExchange& exchange, const MatrixExchange::Round& round) const;
  void find_others();

  /// Elements [begin, end) of the flat space.
  struct Interval {
    Dim begin;
    Dim end;
  };
  param::StateView exp_avg_;
  param::StateView exp_avg_sq_;
  std::vector<MatrixExchange> exchanges_;  ///< that of experts' matrices last
  double rate_of_matrices_;                ///< param::Param::muon_rate
  ops::OrthogonalizeSpace space_;
  bool bf16_products_;
  std::vector<Interval> others_;  ///< between matrices, in order, from a granule on
};

}  // namespace hyperslab::optim
