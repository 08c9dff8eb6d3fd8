// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hyperslab/ops/fp8.hpp"

namespace hyperslab::nn {

/// Which linear layers of the blocks multiply in 8-bit floats, and how these are scaled.
struct Fp8Config {
  std::optional<ops::Fp8Scaling> scaling = std::nullopt;  ///< absent: no layer does
  Dim min_width = 2048;  ///< layers with fewer inputs or outputs do not: rounding costs more there
  int keep_first = 0;    ///< blocks that do not, at the begin of the model
  int keep_last = 0;     ///< and at its end
  friend bool operator==(const Fp8Config&, const Fp8Config&) = default;

  explicit operator bool() const { return scaling.has_value(); }
  /// That of block `layer` of `layers`.
  [[nodiscard]] Fp8Config of_block(int layer, int layers) const {
    const bool keeps = layer < keep_first || layer >= layers - keep_last;
    return keeps ? Fp8Config{} : *this;
  }
};

}  // namespace hyperslab::nn
