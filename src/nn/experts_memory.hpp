// SPDX-License-Identifier: Apache-2.0
// The memory of mixtures of experts.
#pragma once

#include "hyperslab/nn/experts.hpp"

namespace hyperslab::nn {

/// The network that all shared experts are together.
[[nodiscard]] BlockConfig shared_config(const BlockConfig& config);
/// SublayerType::plan_memory of kExperts.
[[nodiscard]] SublayerMemory plan_experts_memory(Arena& arena, const BlockConfig& config,
                                                 const ActivationSpec& spec);

}  // namespace hyperslab::nn
