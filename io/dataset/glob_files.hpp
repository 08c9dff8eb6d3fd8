// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "dataset/mapped_file.hpp"

namespace hyperslab::io {

/// The path itself, or, if there is no such file and it has the characters of a pattern, the paths
/// that match it, sorted by their bytes. Throws Error(data) if none does.
[[nodiscard]] std::vector<std::string> glob_files(const std::string& path,
                                                  const FileKind& kind = kTokenFile);

}  // namespace hyperslab::io
