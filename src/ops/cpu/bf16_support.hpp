// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::ops::cpu {

/// True if this processor and its operating system have AVX512_BF16. Where they have not, ops
/// multiply f32 copies of their operands (wide_operands.hpp).
[[nodiscard]] bool has_bf16_products();

}  // namespace hyperslab::ops::cpu
