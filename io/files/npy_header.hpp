// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace hyperslab::io {

inline constexpr std::size_t kNpyHeaderBytes = 128;  ///< a multiple of 64, as the format asks for

/// The header of a .npy file, kNpyHeaderBytes long. `type` is NumPy's, "<f4"; `shape` is a tuple of
/// Python, "(3, 4)".
[[nodiscard]] std::string npy_header(const std::string& type, const std::string& shape);

}  // namespace hyperslab::io
