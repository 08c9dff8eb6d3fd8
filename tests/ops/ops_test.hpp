// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/core/error.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// A context on the CPU with scratch memory for every test.
class OpsTest : public testing::Test {
 protected:
  static constexpr std::size_t kWorkspaceBytes = 8U << 20;
  Context ctx{Device::cpu, kWorkspaceBytes};
};

/// An output that shows every element that an op forgets.
[[nodiscard]] inline Tensor poisoned(DType dtype, const Shape& shape) {
  return filled_tensor(dtype, shape, std::numeric_limits<double>::quiet_NaN());
}

/// The same numbers in another floating dtype; f32 to f64 is exact, so the oracle has equal input.
[[nodiscard]] inline Tensor converted(CView view, DType dtype) {
  return tensor_of(dtype, view.shape(), to_doubles(view));
}

/// Normals in bf16.
[[nodiscard]] inline Tensor bf16_numbers(const Shape& shape, std::uint64_t seed) {
  return converted(random_tensor(DType::f32, shape, seed).view(), DType::bf16);
}

[[nodiscard]] inline bool same_bits(CView a, CView b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

/// EXPECTs an f32 result to be within the table's tolerance of the double oracle.
inline void expect_matches_oracle(CView result, CView oracle, std::string_view what,
                                  double slack = 1.0) {
  ASSERT_TRUE(result.shape() == oracle.shape()) << what;
  if (oracle.numel() == 0) return;
  EXPECT_LE(relative_difference(result, oracle), slack * tolerance(result.dtype())) << what;
}

inline void expect_values(CView view, const std::vector<double>& expected, double within = 1e-6) {
  const std::vector<double> found = to_doubles(view);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], within) << i;
}

/// EXPECTs an Error whose message names `argument`.
template <class Call>
void expect_error_naming(const std::string& argument, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown, expected an error about " << argument;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(argument));
  }
}

}  // namespace hyperslab::test
