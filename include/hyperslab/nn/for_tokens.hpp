// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/view.hpp"

namespace hyperslab::nn {

/// The front of a (B, T_max, ...) buffer as (B, T, ...): memory that was planned for T_max tokens a
/// sample, used for fewer. Absent if the buffer is.
[[nodiscard]] inline View for_tokens(View buffer, Dim T) {
  if (!buffer) return buffer;
  const auto sizes = buffer.shape().dims();
  require(sizes.size() >= 2 && T <= sizes[1], "a buffer for fewer tokens than asked for");
  std::array<Dim, kMaxRank> dims{};
  std::ranges::copy(sizes, dims.begin());
  dims[1] = T;
  return {buffer.raw(), buffer.dtype(), buffer.device(),
          Shape(std::span<const Dim>(dims.data(), sizes.size()))};
}

}  // namespace hyperslab::nn
