// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// narrow = columns [first, first + C) of wide. wide: (..., W); narrow: (..., C), of as many rows
/// and of one dtype.
void take_columns(Context& ctx, CView wide, Dim first, View narrow);
/// Columns [first, first + C) of wide = narrow; the others stay.
void put_columns(Context& ctx, CView narrow, Dim first, View wide);

}  // namespace hyperslab::ops
