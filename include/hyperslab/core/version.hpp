// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hyperslab {

[[nodiscard]] std::string version();  ///< Such as "0.2.0"; CMakeLists.txt sets it.
/// Commit that was configured, with "+" if the tree had changes; "unknown" outside a checkout.
[[nodiscard]] std::string commit();

}  // namespace hyperslab
