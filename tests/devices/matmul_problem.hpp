// SPDX-License-Identifier: Apache-2.0
// Problems of matrix products, for the tests of every device and for those of kernels.
#pragma once

#include <array>
#include <cmath>

#include "devices/problem.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops::test {

using namespace hyperslab::test;

/// Sizes of one, primes, multiples of 8, and more than a tile.
inline const std::vector<std::array<Dim, 3>> kSizes = {{1, 1, 1},     {2, 3, 4},      {7, 13, 5},
                                                       {17, 1, 31},   {64, 64, 64},   {72, 40, 24},
                                                       {33, 65, 257}, {256, 136, 520}};

/// The dtype of stored operands, and the arithmetic of GEMMs in f32.
struct Precision {
  DType dtype;
  bool tf32 = false;
  [[nodiscard]] std::string str() const { return tf32 ? "tf32" : std::string(name_of(dtype)); }
  /// tf32 has the digits of f16.
  [[nodiscard]] double slack() const {
    return tf32 ? tolerance(DType::f16) / tolerance(DType::f32) : 1.0;
  }
};
inline const std::vector<Precision> kPrecisions = {
    {DType::f32}, {DType::bf16}, {DType::f16}, {DType::f32, true}};

/// The call with pinned algorithms or with timed ones.
inline Problem::Call in_mode(const Problem::Call& call, const Precision& precision, bool pinned) {
  return [=](Context& ctx, const Views& v) {
    ctx.set_tf32(precision.tf32);
    ctx.set_deterministic(pinned);
    call(ctx, v);
  };
}

/// Standard normals in the dtype, divided so that sums over K are of order one.
inline Tensor operand(DType dtype, const Shape& shape, std::uint64_t seed, Dim K = 1) {
  return random_tensor(dtype, shape, seed, 1.0 / std::sqrt(static_cast<double>(K)));
}

/// The addend of a GEMM; poison if the GEMM overwrites it.
inline Tensor target(DType dtype, const Shape& shape, std::uint64_t seed, Accumulate accumulate) {
  return accumulate == Accumulate::yes ? operand(dtype, shape, seed) : poisoned(dtype, shape);
}

/// Runs with the pinned algorithms, which must repeat their bits.
inline void expect_pinned(const Problem& problem, const Problem::Call& call,
                          const std::string& what, const Precision& precision) {
  problem.expect_match(in_mode(call, precision, true), what + ", deterministic, " + precision.str(),
                       precision.slack());
}

/// Runs with the pinned algorithms and with the timed ones.
inline void expect_both_modes(const Problem& problem, const Problem::Call& call,
                              const std::string& what, const std::vector<std::size_t>& outputs,
                              const Precision& precision) {
  expect_pinned(problem, call, what, precision);
  if (problem.devices().empty()) return;
  const auto oracle = problem.on_oracle(call);
  const auto check = [&](const Results& timed) {
    for (const std::size_t i : outputs) {
      if (oracle[i].view().numel() == 0) continue;
      const double expected =
          std::max(tolerance(precision.dtype), tolerance(timed[i].view().dtype()));
      EXPECT_LE(relative_difference(timed[i].view(), oracle[i].view()),
                precision.slack() * expected)
          << what << ", timed, in " << precision.str() << ", operand " << i;
    }
  };
  problem.on_each(in_mode(call, precision, false), check, {0});
}

}  // namespace hyperslab::ops::test
