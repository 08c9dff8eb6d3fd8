// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace hyperslab {

/// Work that ops report on `meta`: floating-point operations, bytes read and written by a perfect
/// implementation that touches every operand once, and calls.
struct Work {
  double flops = 0;
  double bytes = 0;
  std::int64_t calls = 0;
};

/// Sums of work by (component, op). The component is the recorder's innermost open scope.
class Ledger {
 public:
  void add(std::string_view component, std::string_view op, double flops, double bytes);
  void clear() { rows_.clear(); }
  [[nodiscard]] Work total() const;
  [[nodiscard]] Work component(std::string_view name) const;
  using Key = std::pair<std::string, std::string>;
  [[nodiscard]] const std::map<Key, Work>& rows() const { return rows_; }

 private:
  std::map<Key, Work> rows_;
};

}  // namespace hyperslab
