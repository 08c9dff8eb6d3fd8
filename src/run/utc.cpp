// SPDX-License-Identifier: Apache-2.0
#include "utc.hpp"

#include <array>
#include <ctime>

namespace hyperslab::run {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), length};
}

}  // namespace hyperslab::run
