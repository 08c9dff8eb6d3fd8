// SPDX-License-Identifier: Apache-2.0
// Paths of data files, which may be patterns (glob(7), with braces and ~).
#pragma once

#include <string>

namespace hyperslab::io {

/// True if a path names something that is there, or a pattern at least one file.
[[nodiscard]] bool names_files(const std::string& path);

/// Joins `folder` and the relative `path`. If that is a pattern, escapes characters of `folder`
/// that a pattern would interpret. Returns `path` if `folder` is empty.
[[nodiscard]] std::string pattern_below(const std::string& folder, const std::string& path);

}  // namespace hyperslab::io
