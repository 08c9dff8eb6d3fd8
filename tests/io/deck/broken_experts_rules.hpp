// SPDX-License-Identifier: Apache-2.0
// Overrides of a deck with rope that break one rule of mixtures of experts each.
#pragma once

#include "broken_overrides.hpp"

namespace hyperslab::deck::test {

inline const std::vector<BrokenOverrides>& broken_experts_rules() {
  static const std::vector<BrokenOverrides> all = {
      {"parallel.tensor",
       {"experts.count=4", "experts.width=6", "parallel.tensor=4"},
       "4 ranks cannot share an expert's width of 6; nearest: 3 or 6"},
      {"parallel.expert",
       {"experts.count=6", "parallel.data=4", "parallel.expert=4"},
       "4 ranks cannot share 6 experts equally; nearest: 2"},
      {"parallel.expert",
       {"parallel.data=2", "parallel.expert=2"},
       "there are no experts: set it to 1"},
      {"experts.count",
       {"experts.count=4", "model.family=vit", "model.image=8", "model.patch=4", "model.classes=3"},
       "models of images have no experts: set it to 0"},
      {"parallel.expert_exchange",
       {"experts.count=4", "parallel.data=2", "parallel.expert=2",
        "parallel.expert_exchange=all_to_all", "run.device=cuda"},
       "set it to auto or all_gather"},
      {"adapter.targets",
       {"experts.count=4", "adapter.rank=4", "run.device=cuda"},
       "adapters of experts are for CPU ranks"},
      {"model.frozen_format",
       {"experts.count=4", "adapter.rank=4", "adapter.targets=[attention.query]",
        "model.frozen_format=int8", "run.device=cuda"},
       "quantized experts are for CPU ranks"},
      {"quantization.weights",
       {"experts.count=4", "quantization.weights=int8", "run.device=cuda"},
       "quantized experts are for CPU ranks"},
      {"experts.active",
       {"experts.count=4", "experts.active=5"},
       "a token cannot take 5 of 4 experts; set it to 4 or less"},
      {"experts.first_dense",
       {"experts.count=4", "experts.first_dense=2"},
       "none of the 2 layers has experts: the first 2 have none"},
      {"experts.groups",
       {"experts.count=6", "experts.groups=4"},
       "6 experts do not make 4 equal groups; nearest: 3 or 6"},
      {"experts.group_active",
       {"experts.count=6", "experts.groups=2", "experts.group_active=3"},
       "there are 2 groups; set it to 2 or less"},
      {"experts.group_active",
       {"experts.count=6", "experts.groups=3", "experts.active=3"},
       "1 groups have 2 experts, and a token takes 3: make it larger"},
      {"experts.balance_samples",
       {"experts.count=4", "experts.balance=batch"},
       "a batch is 2 samples or more: set it to a divisor of train.microbatch"},
      {"experts.balance_samples",
       {"experts.count=4", "experts.balance_samples=2"},
       "samples are balanced together with experts.balance batch: set it to 1"},
      {"experts.balance_samples",
       {"experts.count=4", "experts.balance=batch", "experts.balance_samples=3",
        "train.microbatch=4"},
       "3 samples are balanced together, and a microbatch has 4; nearest: 2 or 4"},
      {"model.bias",
       {"experts.count=4", "model.bias=true"},
       "experts have no biases: set it to false"},
      {"precision.gemm",
       {"experts.count=4", "precision.compute=bf16", "precision.gemm=fp8_tensor"},
       "experts are not multiplied in 8-bit floats: set it to compute"},
      {"adapter.dropout",
       {"experts.count=4", "adapter.rank=4", "adapter.dropout=0.1"},
       "inputs of experts' adapters are not dropped: set it to 0"},
      {"memory.mlp_rows",
       {"experts.count=4", "memory.mlp_rows=8"},
       "rows of experts pass at once: set it to 0"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
