// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "../stored_model.hpp"
#include "hyperslab/generate/sampling.hpp"

namespace hyperslab::cli {

/// --temperature, --top-k, --top-p, --min-p, --repetition-penalty, --stop and --stop-token.
void add_sampling_options(Arguments& args);
/// Their values with --seed and --max-tokens, or the default of SamplingOptions where these are
/// not given. `ends`: tokens that end a text unless --stop-token names one. Throws Error(usage).
[[nodiscard]] generate::SamplingOptions sampling_options(const Arguments& args,
                                                         const StoredModel& model,
                                                         const std::vector<std::int32_t>& ends);

}  // namespace hyperslab::cli
