// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hyperslab::nn {

/// The activations that backward computes again instead of keeping them (Chen et al. 2016).
enum class Recompute : std::uint8_t {
  none,
  selective,  ///< outputs of norms (those before sublayers) and of activation functions
  full,       ///< everything but the input of a block
};
inline constexpr std::array kRecomputes = {Recompute::none, Recompute::selective, Recompute::full};

[[nodiscard]] constexpr std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    case Recompute::full: return "full";
  }
  return "?";
}

}  // namespace hyperslab::nn
