// SPDX-License-Identifier: Apache-2.0
// Overrides of a deck that break one rule of products in 8-bit floats each.
#pragma once

#include "broken_overrides.hpp"

namespace hyperslab::deck::test {

inline const std::vector<BrokenOverrides>& broken_precision_rules() {
  static const std::string kOn = "precision.gemm=fp8_tensor";
  static const std::string kSmall = "precision.fp8_min_width=16";
  static const std::vector<BrokenOverrides> all = {
      {"precision.gradients",
       {"precision.gradients=bf16"},
       "products in fp32 have gradients in fp32"},
      {"precision.gradients",
       {"precision.gradients=bf16", "precision.compute=bf16", "train.microbatch=1"},
       "a step of several microbatches adds their gradients up, which loses bits in bf16"},
      {"precision.gradients",
       {"precision.gradients=bf16", "precision.compute=bf16", "adapter.rank=4"},
       "gradients of adapters are in fp32"},
      {"precision.gemm",
       {kOn, kSmall, "precision.compute=fp16"},
       "fp8_tensor rounds activations and gradients of bf16, and precision.compute is fp16"},
      {"precision.gemm",
       {kOn, kSmall, "quantization.weights=int8"},
       "quantized weights have products of their own"},
      {"precision.fp8_min_width",
       {kOn},
       "no layer of the blocks has 2048 inputs and outputs, so that fp8_tensor would do nothing: "
       "set precision.fp8_min_width to 48 or less"},
      {"precision.fp8_keep_first",
       {kOn, kSmall, "precision.fp8_keep_first=1", "precision.fp8_keep_last=1"},
       "1 and precision.fp8_keep_last 1 keep all of the 2 blocks as they are"},
      {"precision.fp8_cache_weights",
       {"precision.fp8_cache_weights=true"},
       "no weights are rounded to 8-bit floats"},
      {"precision.fp8_param_gather",
       {"precision.fp8_param_gather=true", "precision.gemm=fp8_row", kSmall,
        "precision.compute=bf16", "parallel.zero=1"},
       "with fp8_row no FP8 values serve both a matrix and its transpose"},
      {"precision.fp8_param_gather",
       {"precision.fp8_param_gather=true", kOn, kSmall, "parallel.zero=1"},
       "FP8 values take the place of 16-bit values, and precision.compute is fp32"},
      {"precision.fp8_param_gather",
       {"precision.fp8_param_gather=true", kOn, kSmall, "precision.compute=bf16"},
       "with parallel.zero 0 every rank updates all parameters and gathers none"},
      {"precision.fp8_param_gather",
       {"precision.fp8_param_gather=true", kOn, kSmall, "precision.compute=bf16", "parallel.zero=1",
        "precision.fp8_cache_weights=true"},
       "FP8 values that are gathered serve the whole step already"},
      {"precision.fp8_param_gather",
       {"precision.fp8_param_gather=true", kOn, kSmall, "precision.compute=bf16", "parallel.zero=1",
        "adapter.rank=4"},
       "the blocks' matrices are frozen"},
      {"precision.fp8_param_gather",
       {"precision.fp8_param_gather=true", kOn, kSmall, "precision.compute=bf16", "parallel.zero=1",
        "train.trainable=[norm]"},
       "the blocks' matrices are frozen"},
      {"train.sample_every",
       {"precision.fp8_param_gather=true", kOn, kSmall, "precision.compute=bf16", "parallel.zero=3",
        "parallel.data=2", "train.sample_every=5"},
       "multiplied by 16-bit values, and zero 3 gathers FP8 values; set it to 0"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
