// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops::cpu {

/// Widens groups [begin, end) of the matrix, counted row by row, to out[0], out[1], ...
template <class T>
void widen(const CQuantizedMatrix& weight, Dim begin, Dim end, T* out);

}  // namespace hyperslab::ops::cpu
