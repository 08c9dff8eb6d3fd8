// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hyperslab {

[[nodiscard]] std::string version();  ///< "0.1.0"
/// Commit that was configured, with "+" if the tree had changes; "unknown" outside a checkout.
[[nodiscard]] std::string commit();

}  // namespace hyperslab
