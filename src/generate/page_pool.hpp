// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hyperslab::generate {

/// The pages of a key-value cache, which texts take as they grow and give back when they end. A
/// page has one owner at a time.
class PagePool {
 public:
  /// Pages 0 to `pages` - 1.
  explicit PagePool(std::int64_t pages);

  [[nodiscard]] std::int64_t all() const { return all_; }
  [[nodiscard]] std::int64_t free() const { return std::ssize(free_); }
  /// Makes `to` hold `count` pages if it holds fewer; false: there are not so many, and `to` is as
  /// it was.
  [[nodiscard]] bool take(std::int64_t count, std::vector<std::int32_t>& to);
  /// Takes back the pages of `from` after the first `count`.
  void trim(std::int64_t count, std::vector<std::int32_t>& from);
  /// Takes back all pages of `from`.
  void give_back(std::vector<std::int32_t>& from);

 private:
  std::int64_t all_;
  std::vector<std::int32_t> free_;  ///< the next one to be taken last
};

}  // namespace hyperslab::generate
