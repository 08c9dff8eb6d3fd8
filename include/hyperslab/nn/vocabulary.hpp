// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/tensor_group.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::nn {

/// The split of a vocabulary over a tensor group: padded to a multiple of ranks x `multiple`, then
/// in equal parts. Padding is no token: its rows stay zero, its logits take no part.
struct VocabularySplit {
  VocabularySplit() = default;
  VocabularySplit(const TensorGroup& group, Dim vocabulary, Dim multiple);
  ops::VocabularyShard shard;  ///< rows of this rank
  Dim rows = 0;                ///< rows with padding, equal on all ranks
};

}  // namespace hyperslab::nn
