// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// Finds fixed texts (special tokens) from left to right in one text; of those that begin at one
/// offset the longest.
class MarkerSearch {
 public:
  MarkerSearch(const std::vector<std::string>& markers, std::string_view text);

  struct Part {
    std::string_view before;     ///< text up to the marker, or to the end
    std::ptrdiff_t marker = -1;  ///< its index; -1: none is left
  };
  Part next();

 private:
  const std::vector<std::string>& markers_;
  std::string_view text_;
  std::size_t begin_ = 0;
  std::vector<std::size_t> offsets_;  ///< next occurrence of each marker, from begin_ on
};

}  // namespace hyperslab::io
