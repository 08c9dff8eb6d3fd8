// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

inline constexpr std::array kReducible = {DType::f64, DType::f32, DType::bf16,
                                          DType::f16, DType::i64, DType::i32};
inline constexpr std::array kAllTypes = {DType::f64, DType::f32, DType::bf16, DType::f16,
                                         DType::i64, DType::i32, DType::u16,  DType::u8};
/// Odd sizes: none, one, primes, and one beyond the eager limits of MPI libraries.
inline constexpr std::array<Dim, 5> kSizes = {0, 1, 7, 1021, 20011};

/// A small integer of element i of member r; sums of four stay exact in bf16.
inline double element(Dim i, int r) { return static_cast<double>((i * 7 + r * 5) % 23); }

inline Tensor elements(DType dtype, Dim n, int r) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (Dim i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = element(i, r);
  return tensor_of(dtype, {n}, values);
}

inline std::vector<char> bits(CView view) {
  const auto* begin = static_cast<const char*>(view.raw());
  return {begin, begin + view.bytes()};
}

/// The message of the internal Error that `call` throws, empty if it throws none.
inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    return error.what();
  }
  return {};
}

}  // namespace hyperslab::test
