// SPDX-License-Identifier: Apache-2.0
// Paths of data files, which may be patterns (glob(7), with braces and ~).
#pragma once

#include <string>

namespace hyperslab::io {

/// True if a path names something that is there, or a pattern at least one file.
[[nodiscard]] bool names_files(const std::string& path);

/// The relative `path`, which may be a pattern, below `folder`, whose characters stand for
/// themselves; `path` if `folder` is empty.
[[nodiscard]] std::string pattern_below(const std::string& folder, const std::string& path);

}  // namespace hyperslab::io
