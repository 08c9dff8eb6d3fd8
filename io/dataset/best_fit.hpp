// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hyperslab/core/view.hpp"

namespace hyperslab::io {

/// Items in bins of equal capacity.
struct Bins {
  std::vector<std::uint32_t> items;  ///< all items, bin by bin, each bin in the order of filling
  std::vector<std::int64_t> firsts;  ///< first item of each bin, and the number of items
};

/// Best-fit decreasing: places items by falling length, equal ones in their order, each into the
/// bin with the least space that it fits in (of equal ones the one filled last), else into a new
/// bin. Lengths are 1 to `capacity`, fewer than 2^32 - 1 of them. Takes O(items log capacity) with
/// a base of 64, and up to 28 bytes an item.
[[nodiscard]] Bins best_fit(std::span<const std::int32_t> lengths, Dim capacity);

}  // namespace hyperslab::io
