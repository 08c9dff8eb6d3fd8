// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "hyperslab/core/dtype.hpp"

namespace hyperslab {

/// The arithmetic of a run: tf32 stores f32 and rounds the operands of GEMMs; bf16 and fp16 store
/// 16 bits and add in 32.
enum class Precision : std::uint8_t { fp32, tf32, bf16, fp16 };

[[nodiscard]] constexpr std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::tf32: return "tf32";
    case Precision::bf16: return "bf16";
    case Precision::fp16: return "fp16";
  }
  return "?";
}

/// The elements of activations.
[[nodiscard]] constexpr DType storage_of(Precision precision) {
  if (precision == Precision::bf16) return DType::bf16;
  return precision == Precision::fp16 ? DType::f16 : DType::f32;
}

}  // namespace hyperslab
