// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "hyperslab/train/footprint.hpp"

namespace hyperslab::cli {

/// The keys of `eval --json` and of `bench --mode decode --json` that say how a model is stored:
/// precision, quantization, frozen_format, adapter_rank, and bytes (docs/files.md).
[[nodiscard]] inline nlohmann::ordered_json storage_json(const train::Config& config,
                                                         const train::Footprint& footprint) {
  return {{"precision", name_of(config.precision.compute)},
          {"quantization", train::quantization_text(config)},
          {"frozen_format", train::frozen_format_text(config)},
          {"adapter_rank", config.adapter.rank},
          {"parameter_bytes", footprint.parameters},
          {"matrix_bytes", footprint.matrices},
          {"memory_peak_bytes", footprint.rank_peak}};
}

}  // namespace hyperslab::cli
