// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::interop {

/// Collects the keys that do not fit, to be said at once.
class Complaints {
 public:
  void unless(bool holds, const std::string& text) {
    if (!holds) texts_.push_back(text);
  }
  void raise(ExitCode code, const std::string& begin) const {
    if (!texts_.empty()) throw Error(code, fmt::format("{}: {}", begin, fmt::join(texts_, "; ")));
  }

 private:
  std::vector<std::string> texts_;
};

}  // namespace hyperslab::interop
