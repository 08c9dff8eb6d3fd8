// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/view.hpp"

namespace hyperslab::nn {

/// Tokens of a pass that takes fewer than memory was planned for.
struct TokenCount {
  Dim B = 1;  ///< samples
  Dim T = 1;  ///< tokens of each
};

/// The front of a (B_max, T_max, ...) buffer as (B, T, ...), of at most as many tokens. Absent if
/// the buffer is.
[[nodiscard]] inline View for_tokens(View buffer, const TokenCount& count) {
  if (!buffer) return buffer;
  const auto sizes = buffer.shape().dims();
  require(sizes.size() >= 2 && count.B * count.T <= sizes[0] * sizes[1],
          "a buffer for fewer tokens than asked for");
  std::array<Dim, kMaxRank> dims{};
  std::ranges::copy(sizes, dims.begin());
  dims[0] = count.B;
  dims[1] = count.T;
  return {buffer.raw(), buffer.dtype(), buffer.device(),
          Shape(std::span<const Dim>(dims.data(), sizes.size()))};
}

/// The first rows of a buffer, as (rows, last dimension). Absent if the buffer is.
[[nodiscard]] inline View first_rows(View buffer, Dim rows) {
  return buffer ? buffer.as_matrix().slice(0, rows) : buffer;
}

}  // namespace hyperslab::nn
