// SPDX-License-Identifier: Apache-2.0
#include "storage_json.hpp"

#include <nlohmann/json.hpp>

#include "hyperslab/train/footprint.hpp"

namespace hyperslab::cli {

nlohmann::ordered_json storage_json(const train::Config& config,
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
