// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/json_problem.hpp"

#include <fmt/format.h>

#include <string_view>

namespace hyperslab::io {

std::string json_problem(const std::exception& error) {
  constexpr std::size_t kMost = 200;
  std::string_view what = error.what();
  const std::size_t end = what.starts_with('[') ? what.find("] ") : what.npos;
  if (end != what.npos) what.remove_prefix(end + 2);
  constexpr std::string_view kOtherType = " with ";
  const std::size_t type = what.starts_with("cannot use ") ? what.rfind(kOtherType) : what.npos;
  if (type != what.npos) {  // names a function of the library
    return fmt::format("expected another type of value, found {}",
                       what.substr(type + kOtherType.size()));
  }
  if (what.size() <= kMost) return std::string(what);
  std::size_t length = kMost;
  const auto continues = [&](std::size_t i) {  // a character in UTF-8
    return (static_cast<unsigned char>(what[i]) & 0xC0U) == 0x80U;
  };
  while (length > 0 && continues(length)) --length;
  return std::string(what.substr(0, length)) + "...";
}

}  // namespace hyperslab::io
