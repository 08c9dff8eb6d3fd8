// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "hyperslab/core/view.hpp"

namespace hyperslab::nn {

/// The scaling of the operands of a layer's products: a scale a tensor; a scale a row; 1 x 128
/// values of inputs and gradients, and 128 x 128 of weights, with one (DeepSeek-AI 2024,
/// arXiv:2412.19437 sec. 3.3).
enum class Fp8Recipe : std::uint8_t { tensor, row, block };

/// The rounding of weights in a pass, where their FP8 values may be kept for a step (Fp8Config).
enum class Fp8Weights : std::uint8_t {
  rounded,  ///< for each product alone: nothing is known of when they change
  renewed,  ///< and kept, as the first microbatch after an update does
  kept,     ///< not again
};

/// Which linear layers of the blocks multiply in 8-bit floats, and how these are scaled.
struct Fp8Config {
  std::optional<Fp8Recipe> recipe = std::nullopt;  ///< absent: no layer does
  Dim min_width = 2048;  ///< layers with fewer inputs or outputs do not: rounding costs more there
  int keep_first = 0;    ///< blocks that do not, at the begin of the model
  int keep_last = 0;     ///< and at its end
  /// Training rounds weights once a step, in forward, for all products of its microbatches, and
  /// keeps the FP8 values of each matrix and of its transpose: two bytes a weight.
  bool caches_weights = false;
  /// Data ranks gather FP8 values of weights in place of values, which serve a step: two bytes a
  /// weight, with the transpose's. With a scale a tensor.
  bool gathers_fp8 = false;
  friend bool operator==(const Fp8Config&, const Fp8Config&) = default;

  explicit operator bool() const { return recipe.has_value(); }
  /// The configuration of block `layer` of `layers`.
  [[nodiscard]] Fp8Config of_block(int layer, int layers) const {
    const bool keeps = layer < keep_first || layer >= layers - keep_last;
    return keeps ? Fp8Config{} : *this;
  }
};

}  // namespace hyperslab::nn
