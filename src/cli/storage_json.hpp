// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace hyperslab::train {
struct Config;
struct Footprint;
}  // namespace hyperslab::train

namespace hyperslab::cli {

/// The keys of `eval --json` and of `bench --mode decode --json` that say how a model is stored:
/// precision, quantization, frozen_format, adapter_rank, and bytes (docs/files.md).
[[nodiscard]] nlohmann::ordered_json storage_json(const train::Config& config,
                                                  const train::Footprint& footprint);

}  // namespace hyperslab::cli
