// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

namespace hyperslab {

/// The least multiple of `unit` that is not less than `value`. Neither is negative.
template <std::integral T>
[[nodiscard]] constexpr T round_up(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace hyperslab
