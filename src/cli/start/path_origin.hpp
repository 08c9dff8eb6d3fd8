// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hyperslab::cli {

/// "; the path is that of --set data.train=[x.bin]", if an argument of the command line gives a key
/// of paths so and `message` has the path in quotes; else empty.
[[nodiscard]] std::string origin_of_path(const std::string& message,
                                         const std::vector<std::string>& words);

}  // namespace hyperslab::cli
