// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hyperslab::image {

/// The random numbers of one sample for one purpose: Philox blocks 0, 1, ... of its own stream,
/// with the sample's index as their counter.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view purpose, std::uint64_t index);

  /// Uniform on [0, 1), 53 bits.
  [[nodiscard]] double uniform();
  [[nodiscard]] double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform on 0, 1, ..., count - 1.
  [[nodiscard]] std::int64_t below(std::int64_t count);
  [[nodiscard]] bool chance(double probability) { return uniform() < probability; }
  /// Standard normal (Box & Muller 1958).
  [[nodiscard]] double normal();
  /// Beta(alpha, alpha) as the share of one of two gamma variates (Marsaglia & Tsang 2000; for
  /// alpha < 1 their section 6), by logarithms, so that a small alpha gives 0 and 1, not 0 / 0.
  [[nodiscard]] double beta(double alpha);

 private:
  [[nodiscard]] double log_gamma_variate(double shape);

  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t index_;
  std::array<std::uint64_t, 2> words_{};
  std::uint64_t used_ = 0;  // words so far
};

}  // namespace hyperslab::image
