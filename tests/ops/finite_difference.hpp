// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string_view>

#include "support/tensors.hpp"

namespace hyperslab::test {

/// A random linear functional <weights, output>: its gradient with respect to the output is
/// `weights`, so one backward pass from there gives the gradients that differences can check.
[[nodiscard]] inline double inner_product(CView weights, CView output) {
  const std::vector<double> w = to_doubles(weights);
  const std::vector<double> y = to_doubles(output);
  EXPECT_EQ(w.size(), y.size());
  double sum = 0;
  for (std::size_t i = 0; i < w.size(); ++i) sum += w[i] * y[i];
  return sum;
}

/// EXPECTs `gradient` to be the derivative of `value` with respect to every element of `input`, by
/// central differences of fourth order. `input` is f64 and is put back; `value` reads it.
/// `within` is relative to the largest element of the gradient.
inline void expect_gradient(std::string_view what, View input, CView gradient,
                            const std::function<double()>& value, double within = 1e-8,
                            double step = 1e-3) {
  ASSERT_EQ(input.numel(), gradient.numel()) << what;
  const std::vector<double> found = to_doubles(gradient);
  double largest = 1e-8;
  for (const double g : found) largest = std::max(largest, std::abs(g));
  auto* x = input.data<double>();
  const auto at = [&](std::size_t i, double offset) {
    const double old = x[i];
    x[i] = old + offset;
    const double result = value();
    x[i] = old;
    return result;
  };
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double near = at(i, step) - at(i, -step);
    const double far = at(i, 2 * step) - at(i, -2 * step);
    const double expected = (8 * near - far) / (12 * step);
    ASSERT_TRUE(std::isfinite(found[i])) << what << ", element " << i;
    ASSERT_LE(std::abs(found[i] - expected), within * largest)
        << what << ", element " << i << ": gradient " << found[i] << ", differences " << expected;
  }
}

}  // namespace hyperslab::test
