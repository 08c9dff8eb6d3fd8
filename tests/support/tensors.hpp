// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "hyperslab/core/context.hpp"

namespace hyperslab::test {

/// The one table of tolerances: relative to the amax of the reference tensor.
[[nodiscard]] double tolerance(DType dtype);

/// Standard normals on the CPU, a function of the seed alone.
[[nodiscard]] Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t seed,
                                   double std_deviation = 1.0);
/// Every element set to `value`, NaN to poison an output.
[[nodiscard]] Tensor filled_tensor(DType dtype, const Shape& shape, double value);
[[nodiscard]] Tensor int_tensor(const Shape& shape, const std::vector<std::int32_t>& values);
[[nodiscard]] Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values);

/// All elements as doubles, from any floating or integer CPU tensor.
[[nodiscard]] std::vector<double> to_doubles(CView view);

/// max |a - b| / max(max |b|, floor); NaN anywhere gives infinity.
[[nodiscard]] double relative_difference(CView a, CView b, double floor = 1e-30);
/// EXPECTs that `a` has the shape of `b` and is within the tolerance of a's dtype times `slack`.
void expect_close(CView a, CView b, std::string_view what, double slack = 1.0);

}  // namespace hyperslab::test
