// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::ops::cpu {

/// Whether the processor multiplies tiles of bytes and Linux lets this process do so, which it asks
/// for. In int8_avx512.cpp.
[[nodiscard]] bool may_use_amx();

}  // namespace hyperslab::ops::cpu
