// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// Finds in every row of x the column of the largest of its first V values, the first of equal
/// ones; -1 if one of them is NaN or infinite, or all are -infinity, which alone is no error. x:
/// (rows, C), C at least V; index: (rows) i32. Enqueues on ctx.
void argmax(Context& ctx, CView x, Dim V, View index);

}  // namespace hyperslab::ops
