// SPDX-License-Identifier: Apache-2.0
// The dtypes of tensors in a checkpoint, and the format version that they ask for.
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/core/dtype.hpp"
#include "hyperslab/core/hyperslab.hpp"

namespace hyperslab::io {

/// True if a checkpoint can hold tensors of this dtype: f32, f16 and u8.
[[nodiscard]] bool is_storable(DType dtype);
/// The storable dtype that name_of() calls so; throws std::invalid_argument for other names.
[[nodiscard]] DType storable_dtype(const std::string& name);

/// The oldest format that has tensors of this dtype. Programs that know f32 alone read format 1,
/// so a checkpoint or a file is of format 2 only if it holds another dtype.
[[nodiscard]] constexpr int format_of(DType dtype) { return dtype == DType::f32 ? 1 : 2; }

/// Bytes of the elements of `part`.
[[nodiscard]] inline std::uint64_t bytes_of_part(const Hyperslab& part, DType dtype) {
  return static_cast<std::uint64_t>(part.numel()) * size_of(dtype);
}

}  // namespace hyperslab::io
