// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checks.hpp"
#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops {

/// Throws an internal Error naming `what` unless the format can hold a matrix of this shape in such
/// groups.
void require_format(WeightFormat format, Dim group, const Shape& shape, std::string_view what);

/// Throws an internal Error naming `what` unless the three arrays are here and fit the format.
void require_quantized(const Context& ctx, const CQuantizedMatrix& matrix, const std::string& what);

}  // namespace hyperslab::ops
