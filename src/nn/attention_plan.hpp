// SPDX-License-Identifier: Apache-2.0
// The heads and the memory of attention on a rank.
#pragma once

#include "hyperslab/nn/attention.hpp"

namespace hyperslab::nn {

/// Key-value heads of this rank: an equal part, or one that `replicas` ranks share.
struct KeyValueHeads {
  Dim count = 1;
  Hyperslab part;  ///< rows of the key and value matrices
  int replicas = 1;
  int replica = 0;
};

[[nodiscard]] KeyValueHeads key_value_heads(const ops::HeadLayout& heads, const TensorGroup& group);
/// The heads of this rank of the tensor group.
[[nodiscard]] ops::HeadLayout heads_of_rank(const BlockConfig& config);
/// SublayerType::plan_memory of attention.
[[nodiscard]] SublayerMemory plan_attention_memory(Arena& arena, const BlockConfig& config,
                                                   const ActivationSpec& spec);

}  // namespace hyperslab::nn
