// SPDX-License-Identifier: Apache-2.0
#include "hdf5/sparse_file.hpp"

#include <algorithm>
#include <cstring>

#include "hdf5/pages.hpp"

namespace hyperslab::io::hdf5 {

void SparseFile::read(std::uint64_t offset, char* out, std::size_t bytes) {
  for_pages(kPageBytes, offset, bytes, [&](auto page, auto inside, auto done, auto some) {
    const auto found = pages_.find(page);
    if (found == pages_.end()) {
      std::memset(out + done, 0, some);
    } else {
      std::memcpy(out + done, found->second.data() + inside, some);
    }
  });
}

void SparseFile::write(std::uint64_t offset, const char* data, std::size_t bytes) {
  for_pages(kPageBytes, offset, bytes, [&](auto page, auto inside, auto done, auto some) {
    std::memcpy(pages_.try_emplace(page).first->second.data() + inside, data + done, some);
  });
  bytes_ = std::max(bytes_, offset + bytes);
}

std::vector<SparseFile::Extent> SparseFile::written() const {
  std::vector<Extent> extents;
  for (const auto& [page, bytes] : pages_) {
    const std::uint64_t begin = page * kPageBytes;
    const std::uint64_t end = std::min(begin + kPageBytes, bytes_);
    if (begin >= end) break;
    if (!extents.empty() && extents.back().end == begin) {
      extents.back().end = end;
    } else {
      extents.push_back({begin, end});
    }
  }
  return extents;
}

}  // namespace hyperslab::io::hdf5
