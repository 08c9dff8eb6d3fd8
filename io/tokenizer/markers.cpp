// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/markers.hpp"

namespace hyperslab::io {

MarkerSearch::MarkerSearch(const std::vector<std::string>& markers, std::string_view text)
    : markers_(markers), text_(text) {
  for (const std::string& marker : markers_) offsets_.push_back(text_.find(marker));
}

MarkerSearch::Part MarkerSearch::next() {
  std::ptrdiff_t best = -1;
  std::size_t at = text_.npos;
  for (std::size_t i = 0; i < markers_.size(); ++i) {
    if (offsets_[i] < begin_) offsets_[i] = text_.find(markers_[i], begin_);
    if (offsets_[i] == text_.npos || offsets_[i] > at) continue;
    const bool longer = best < 0 || offsets_[i] < at ||
                        markers_[i].size() > markers_[static_cast<std::size_t>(best)].size();
    if (longer) best = static_cast<std::ptrdiff_t>(i);
    at = offsets_[i];
  }
  const Part part{text_.substr(begin_, best < 0 ? text_.npos : at - begin_), best};
  begin_ = best < 0 ? text_.size() : at + markers_[static_cast<std::size_t>(best)].size();
  return part;
}

}  // namespace hyperslab::io
