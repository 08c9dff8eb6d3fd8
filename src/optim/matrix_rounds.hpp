// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/param/store.hpp"

namespace hyperslab::optim {

/// A matrix that is updated as a whole, by one rank of those that hold its parts.
struct OwnedMatrix {
  const param::Param* param = nullptr;
  int owner = 0;
};
/// The matrices that all owners work on at a time: by owner, then by shape, so that matrices of one
/// shape are a batch.
using MatrixRound = std::vector<OwnedMatrix>;

/// True if the parameter is orthogonalized: a matrix of a block that has elements here.
[[nodiscard]] bool is_matrix(const param::Param& param);

/// Deals the matrices, of experts or all others, out to `owners` ranks, the costliest first, each
/// to the owner with the least cost so far (Graham 1969), the cost being ops::orthogonalize_flops
/// of the global tensor. An owner takes at most `most_elements` of its own in a round, but at least
/// one matrix. The same on all ranks of a stage.
[[nodiscard]] std::vector<MatrixRound> plan_matrix_rounds(const param::ParamGroup& group,
                                                          bool of_experts, int owners,
                                                          Dim most_elements);

}  // namespace hyperslab::optim
