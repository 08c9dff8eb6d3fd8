// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/error.hpp"

namespace hyperslab {

Error::Error(ExitCode code, const std::string& message, std::source_location where)
    : std::runtime_error(message), code_(code), where_(where) {}

void require(bool condition, const char* message, std::source_location where) {
  if (!condition) throw Error(ExitCode::internal, message, where);
}

}  // namespace hyperslab
