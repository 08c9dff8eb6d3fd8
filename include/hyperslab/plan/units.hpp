// SPDX-License-Identifier: Apache-2.0
// Figures in units in which they can be read.
#pragma once

#include <string>

namespace hyperslab::plan {

/// "1.50 TiB", "20.31 GiB", "96.0 MiB".
[[nodiscard]] std::string bytes_text(double bytes);

/// "630.0 TFLOP/s", "97.0 GFLOP/s".
[[nodiscard]] std::string rate_text(double flops_per_second);

}  // namespace hyperslab::plan
