// SPDX-License-Identifier: Apache-2.0
#include "utilization.hpp"

#include <fmt/format.h>

#include <limits>

namespace hyperslab::run {

std::optional<std::string> Utilization::judge(std::int64_t step, double flops_per_second) {
  const double share = flops_per_second / rate_.flops;
  if (!(share > 1)) return std::nullopt;  // also if the rate is not a number
  rate_.flops = std::numeric_limits<double>::quiet_NaN();
  return fmt::format(
      "step {} ran at {:.2f} times {} ({}), which {}; utilization is left out from here on; "
      "HYPERSLAB_MATRIX_GFLOPS=N states the GFLOP/s of one CPU rank",
      step, share, rate_.name, rate_.source,
      rate_.is_measured ? "was measured while other programs used the machine"
                        : "is therefore not this machine's");
}

double Utilization::share(double flops_per_second) const { return flops_per_second / rate_.flops; }

}  // namespace hyperslab::run
