// SPDX-License-Identifier: Apache-2.0
#include "draws.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "hyperslab/core/philox.hpp"

namespace hyperslab::image {

Draws::Draws(std::uint64_t seed, std::string_view purpose, std::uint64_t index)
    : seed_(seed), stream_(name_hash("image." + std::string(purpose))), index_(index) {}

double Draws::uniform() {
  if (used_ % 2 == 0) {
    const PhiloxCounter block = philox(philox_counter(index_, stream_ + used_ / 2), seed_);
    words_ = {std::uint64_t{block.x[0]} << 32 | block.x[1],
              std::uint64_t{block.x[2]} << 32 | block.x[3]};
  }
  return static_cast<double>(words_[used_++ % 2] >> 11) * 0x1p-53;
}

std::int64_t Draws::below(std::int64_t count) {
  return std::min(static_cast<std::int64_t>(uniform() * static_cast<double>(count)), count - 1);
}

double Draws::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

double Draws::log_gamma_variate(double shape) {
  if (shape < 1) {
    const double larger = log_gamma_variate(shape + 1);
    return larger + std::log(1.0 - uniform()) / shape;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = normal();
    const double root = 1.0 + c * x;
    const double u = 1.0 - uniform();
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return std::log(d * v);
  }
}

double Draws::beta(double alpha) {
  const double first = log_gamma_variate(alpha);
  const double second = log_gamma_variate(alpha);
  return 1.0 / (1.0 + std::exp(second - first));
}

}  // namespace hyperslab::image
