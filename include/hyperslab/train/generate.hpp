// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

struct SamplingOptions {
  std::int64_t max_tokens = 200;
  double temperature = 1.0;  ///< 0: the most likely token
  std::int64_t top_k = 0;    ///< 0: all
  double top_p = 1.0;        ///< nucleus (Holtzman et al. 2020); 1: all
  std::uint64_t seed = 1;
  std::int32_t stop_token = -1;
};

/// The id that `options` and the draw `index` choose from logits: (V). `scratch` grows once.
[[nodiscard]] std::int32_t sample_token(std::span<const float> logits,
                                        const SamplingOptions& options, std::int64_t index,
                                        std::vector<std::int32_t>& scratch);

struct GenerateStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;
  double prompt_seconds = 0;
  double seconds = 0;
};

/// Continues `prompt` with a key-value cache; `emit` gets every token as it comes. Where the
/// context is full, the newer half of it is read again as a prompt. One rank.
GenerateStats generate(const Config& config, const io::CheckpointReader& reader,
                       const std::vector<std::int32_t>& prompt, const SamplingOptions& options,
                       const std::function<void(std::int32_t)>& emit);

}  // namespace hyperslab::train
