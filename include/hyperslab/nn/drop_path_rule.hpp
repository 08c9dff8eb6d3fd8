// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::nn {

/// The share of samples that skip a sublayer of an earlier block: growing from 0 with the depth
/// (Huang et al. 2016), or equal to the last block's.
enum class DropPathRule : std::uint8_t { linear, constant };

}  // namespace hyperslab::nn
