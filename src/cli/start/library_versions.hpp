// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hyperslab::cli {

/// "hyperslab 0.1.0 (COMMIT)" on the first line, which scripts read; then the compiler, the
/// libraries that are loaded, and the processor's vectors.
[[nodiscard]] std::string versions();

}  // namespace hyperslab::cli
