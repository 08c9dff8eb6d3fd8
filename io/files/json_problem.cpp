// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/json_problem.hpp"

#include <string_view>

namespace hyperslab::io {

std::string json_problem(const std::exception& error) {
  constexpr std::size_t kMost = 200;
  std::string_view what = error.what();
  const std::size_t end = what.starts_with('[') ? what.find("] ") : what.npos;
  if (end != what.npos) what.remove_prefix(end + 2);
  return what.size() <= kMost ? std::string(what) : std::string(what.substr(0, kMost)) + "...";
}

}  // namespace hyperslab::io
