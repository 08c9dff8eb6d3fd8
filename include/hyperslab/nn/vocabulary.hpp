// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/tensor_group.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::nn {

/// How a vocabulary is dealt out over a tensor group: padded to a multiple of ranks x `multiple`,
/// then in equal parts. Padding is no token: its rows stay zero, its logits take no part.
struct VocabularyCut {
  VocabularyCut() = default;
  VocabularyCut(const TensorGroup& group, Dim vocabulary, Dim multiple);
  ops::VocabularyShard shard;  ///< of this rank
  Dim rows = 0;                ///< with padding, equal on all ranks
  Part part;                   ///< of a table (V, C)
};

}  // namespace hyperslab::nn
