// SPDX-License-Identifier: Apache-2.0
#include "page_pool.hpp"

#include <numeric>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {

PagePool::PagePool(std::int64_t pages) : all_(pages), free_(static_cast<std::size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

bool PagePool::take(std::int64_t count, std::vector<std::int32_t>& to) {
  const std::int64_t more = count - std::ssize(to);
  if (more > free()) return false;
  for (std::int64_t i = 0; i < more; ++i) {
    to.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PagePool::trim(std::int64_t count, std::vector<std::int32_t>& from) {
  const std::int64_t less = std::ssize(from) - count;
  if (less <= 0) return;
  require(less <= all_ - free(), "page_pool: pages come back that are not out");
  free_.insert(free_.end(), from.rbegin(), from.rbegin() + less);
  from.resize(static_cast<std::size_t>(count));
}

void PagePool::give_back(std::vector<std::int32_t>& from) { trim(0, from); }

}  // namespace hyperslab::generate
