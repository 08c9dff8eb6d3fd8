// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "matrix_rounds.hpp"

namespace hyperslab::optim {

/// Brings the parts of matrices that data and tensor ranks hold to the matrices' owners, and the
/// owners' results back to all holders, one round of matrices after the other. The owner
/// with number `data rank * tensor ranks + tensor rank` is that rank.
///
/// A holder's part of a matrix goes two ways: over the data group to the data rank of the owner,
/// where it meets the other shards of this tensor rank's part; then over the tensor group to the
/// owner. If the data ranks hold everything (zero 0), the first way moves nothing there, and all
/// of it back.
class MatrixExchange {
 public:
  /// Elements that this rank updates, and where their numbers come from and return to.
  struct Piece {
    param::ElementRange range;
    View numbers;  ///< flat
  };
  /// A message of one element range to or from a member of a group.
  struct Move {
    View numbers;
    int peer = 0;
    bool sends = false;
  };
  /// Columns of a whole matrix that a tensor rank has as a matrix of its own.
  struct Columns {
    View part;
    Dim first = 0;
    View whole;
  };
  struct Round {
    std::vector<Piece> pieces;
    std::vector<View> batches;  ///< this rank's own matrices: (B, rows, columns), of one shape
    std::vector<Move> to_data_rank;
    std::vector<Move> to_owner;
    std::vector<Columns> columns;
    std::vector<Move> from_owner;
    std::vector<Move> from_data_rank;
  };

  /// Takes memory for the largest round, in the masters' dtype. `of_experts`: the matrices of
  /// experts, whose data group is UpdateGroups::expert_data, else all others. `sharded`: true if
  /// data ranks update only their shards.
  MatrixExchange(const param::ParamGroup& group, bool of_experts, bool sharded,
                 const UpdateGroups& groups, Arena& arena);
  [[nodiscard]] const std::vector<Round>& rounds() const { return rounds_; }

  /// The pieces of all ranks become the owners' batches; collective over both groups.
  void gather(Context& ctx, const Round& round) const;
  /// The owners' batches become the pieces of all ranks; collective over both groups.
  void scatter(Context& ctx, const Round& round) const;

 private:
  UpdateGroups groups_;
  bool sharded_;
  std::vector<Round> rounds_;
};

}  // namespace hyperslab::optim
