// SPDX-License-Identifier: Apache-2.0
// Overrides of a deck that break one rule of pieces of rows each.
#pragma once

#include "broken_overrides.hpp"

namespace hyperslab::deck::test {

inline const std::vector<BrokenOverrides>& broken_memory_rules() {
  static const std::string kFull = "memory.recompute=full";
  static const std::string kRows = "memory.mlp_rows=64";
  static const std::vector<BrokenOverrides> all = {
      {"memory.activations",
       {"memory.activations=host", "memory.recompute=selective"},
       "selective keeps more than the inputs of blocks; set memory.recompute to full, or "
       "memory.activations to device"},
      {"memory.host_layers",
       {kFull, "memory.host_layers=1"},
       "all inputs rest on the device; set memory.activations to host, or memory.host_layers to 0"},
      {"memory.mlp_rows",
       {kRows, "memory.recompute=selective"},
       "a feed-forward network in pieces keeps only its input, and recompute selective keeps more: "
       "set memory.recompute to full, or memory.mlp_rows to 0"},
      {"memory.mlp_rows",
       {kRows, kFull, "precision.gradients=bf16", "precision.compute=bf16", "train.microbatch=8"},
       "every piece would round the sum of gradients to bf16: set precision.gradients to fp32, or "
       "memory.mlp_rows to 0"},
      {"memory.mlp_rows",
       {kRows, kFull, "precision.gemm=fp8_tensor", "precision.fp8_min_width=16",
        "precision.compute=bf16"},
       "pieces of at most 64 rows may be too small for products in 8-bit floats; set it to 256 or "
       "more"},
      {"memory.mlp_rows",
       {kRows, kFull, "adapter.rank=4", "adapter.dropout=0.1"},
       "the masks of adapters' inputs are those of whole microbatches: set adapter.dropout or "
       "memory.mlp_rows to 0"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
