// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hyperslab::io::hdf5 {

/// Calls visit(page, first byte in the page, bytes done before, bytes) for every page of
/// `page_bytes` that the range of `bytes` from `offset` touches.
template <class Visit>
void for_pages(std::size_t page_bytes, std::uint64_t offset, std::size_t bytes, Visit visit) {
  for (std::size_t done = 0; done < bytes;) {
    const std::uint64_t page = (offset + done) / page_bytes;
    const std::size_t inside = (offset + done) % page_bytes;
    const std::size_t some = std::min<std::size_t>(page_bytes - inside, bytes - done);
    visit(page, inside, done, some);
    done += some;
  }
}

}  // namespace hyperslab::io::hdf5
