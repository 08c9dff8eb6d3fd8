// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hyperslab::deck::test {

/// Overrides of the valid deck that break one rule.
struct BrokenOverrides {
  std::string key;  ///< of the rule
  std::vector<std::string> overrides;
  std::string message;  ///< a part of it
};

}  // namespace hyperslab::deck::test
