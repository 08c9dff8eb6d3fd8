// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/units.hpp"

#include <fmt/format.h>

namespace hyperslab::plan {

std::string bytes_text(double bytes) {
  const double gib = bytes / 1073741824.0;
  if (gib >= 1024) return fmt::format("{:.2f} TiB", gib / 1024);
  return gib < 0.1 ? fmt::format("{:.1f} MiB", 1024.0 * gib) : fmt::format("{:.2f} GiB", gib);
}

std::string rate_text(double flops_per_second) {
  return flops_per_second < 1e12 ? fmt::format("{:.1f} GFLOP/s", 1e-9 * flops_per_second)
                                 : fmt::format("{:.1f} TFLOP/s", 1e-12 * flops_per_second);
}

}  // namespace hyperslab::plan
