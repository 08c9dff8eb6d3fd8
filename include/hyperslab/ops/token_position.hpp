// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops {

/// Where the first of some tokens stands in its sample. A GPU reads `live`, if it is present, when
/// a kernel runs, so that a graph replays for any position; `value` is then that of the call which
/// was captured. Elsewhere `value` alone counts.
struct TokenPosition {
  TokenPosition(Dim position = 0, CView on_device = {})  // NOLINT(google-explicit-constructor)
      : value(position), live(on_device) {}
  Dim value;
  CView live;  ///< (1) i32 on the device of the op
};

}  // namespace hyperslab::ops
