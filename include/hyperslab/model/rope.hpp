// SPDX-License-Identifier: Apache-2.0
// Rotary positions for more tokens than a model was trained on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hyperslab/core/view.hpp"

namespace hyperslab::model {

/// linear: all angles divided by a factor (Chen et al. 2023). llama3: the angles of long
/// wavelengths (Llama 3.1, Dubey et al. 2024). yarn: ramp between divided and unchanged ones, and
/// larger scores (Peng et al. 2023, section 3).
enum class RopeScaling : std::uint8_t { none, linear, llama3, yarn };
[[nodiscard]] constexpr std::string_view name_of(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::none: return "none";
    case RopeScaling::linear: return "linear";
    case RopeScaling::llama3: return "llama3";
    case RopeScaling::yarn: return "yarn";
  }
  return "?";
}

/// The angles of rotary positions, by position and dimension.
struct RopeSpec {
  double theta = 10000;
  double fraction = 1;  ///< share of a head's dimensions that are turned, the first ones
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;            ///< context / original_context, of all scalings
  Dim original_context = 0;     ///< context that the model was trained on; llama3 and yarn
  double low_factor = 1;        ///< llama3: original_context / the shortest divided wavelength
  double high_factor = 4;       ///< llama3: original_context / the longest unchanged one
  double beta_fast = 32;        ///< yarn: turns in original_context from which none is divided
  double beta_slow = 1;         ///< yarn: turns up to which all are
  double attention_factor = 0;  ///< yarn: factor of cosines and sines; 0: 0.1 ln(factor) + 1
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

/// Dimensions of a head that are turned: an even number.
[[nodiscard]] Dim rotated_width(const RopeSpec& spec, Dim head_width);

struct RopeAngles {
  std::vector<double> frequencies;  ///< radians a position, for every pair of dimensions
  double magnitude = 1;             ///< factor of cosines and sines
};
/// As transformers' ROPE_INIT_FUNCTIONS compute them.
[[nodiscard]] RopeAngles rope_angles(const RopeSpec& spec, Dim head_width);

}  // namespace hyperslab::model
