// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

std::string StopSearch::push(std::string_view bytes) {
  if (found_) return {};
  pending_ += bytes;
  std::size_t at = pending_.npos;
  for (const std::string& stop : stops_) at = std::min(at, pending_.find(stop));
  std::string out;
  if (at != pending_.npos) {
    found_ = true;
    out = pending_.substr(0, at);
    pending_.clear();
    return out;
  }
  std::size_t held = 0;  // bytes of the longest end that a stop begins with
  for (const std::string& stop : stops_) {
    std::size_t bytes_of_stop = std::min(stop.size() - 1, pending_.size());
    while (bytes_of_stop > held &&
           !pending_.ends_with(std::string_view(stop).substr(0, bytes_of_stop))) {
      --bytes_of_stop;
    }
    held = std::max(held, bytes_of_stop);
  }
  out = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, pending_.size() - held);
  return out;
}

std::string StopSearch::finish() { return std::exchange(pending_, {}); }

}  // namespace hyperslab::io
