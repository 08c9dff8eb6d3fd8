// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "hyperslab/io/safetensors.hpp"

namespace hyperslab::io {

using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;

inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  ///< as the reference reader has it

/// The header of a safetensors file, checked against the file's size. Throws Error(checkpoint).
[[nodiscard]] SafetensorsEntries read_header(const std::string& file);

}  // namespace hyperslab::io
