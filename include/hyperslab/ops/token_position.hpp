// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops {

/// The position of the first of some tokens in its sample. An op reads `live`, if it is present,
/// when it runs, so that a graph replays for any position. `value` is then the position of the
/// captured call; the largest, if samples differ.
struct TokenPosition {
  TokenPosition(Dim position = 0, CView on_device = {})  // NOLINT(google-explicit-constructor)
      : value(position), live(on_device) {}
  Dim value;
  CView live;  ///< i32 on the device of the op: (1) for all samples, or (B) for each

  /// The position of a sample, if `live` is in memory of the host.
  [[nodiscard]] Dim of(Dim sample) const {
    if (!live || live.device() != Device::cpu) return value;
    return live.data<std::int32_t>()[live.numel() == 1 ? 0 : sample];
  }
};

}  // namespace hyperslab::ops
