// SPDX-License-Identifier: Apache-2.0
// Files made by hand for the tests of this folder.
#pragma once

#include <cstdint>
#include <string>

#include "support/files.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {

/// A safetensors file of a header and data, whatever they say.
inline std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

}  // namespace hyperslab::test
