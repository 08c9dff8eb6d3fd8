// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/dropout.hpp"

namespace hyperslab::ops::cpu {

/// y[i] = x[i] * keep / (1 - p) for the elements of global indices first, first + 1, ...; x and y
/// may be the same. T is float or double.
template <class T>
void apply_dropout(const Dropout& dropout, std::uint64_t first, Dim count, const T* x, T* y);

}  // namespace hyperslab::ops::cpu
