// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::nn {

/// RMSNorm of queries and keys before rope: of every head by itself (Qwen3), or of all heads of a
/// token together, which is the width of the product (OLMo 2).
enum class QkNorm : std::uint8_t { none, head, width };

}  // namespace hyperslab::nn
