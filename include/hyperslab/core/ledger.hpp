// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace hyperslab {

/// Work that ops report on `meta`: floating-point operations, bytes read and written by a perfect
/// implementation that touches every operand once, and calls.
struct Work {
  double flops = 0;
  double bytes = 0;
  std::int64_t calls = 0;
  std::set<std::string, std::less<>> paths{};  ///< taken by the calls, if the op has several
};

/// The label under which work is counted.
struct WorkLabel {
  std::string_view component;  ///< the recorder's innermost open scope
  std::string_view op;
  std::string_view path{};
};

/// Sums of work by (component, op).
class Ledger {
 public:
  void add(const WorkLabel& label, double flops, double bytes);
  void clear() { rows_.clear(); }
  [[nodiscard]] Work total() const;
  [[nodiscard]] Work component(std::string_view name) const;
  /// Null if the component has no such op.
  [[nodiscard]] const Work* find(std::string_view component, std::string_view op) const;
  using Key = std::pair<std::string, std::string>;
  [[nodiscard]] const std::map<Key, Work>& rows() const { return rows_; }

 private:
  std::map<Key, Work> rows_;
};

}  // namespace hyperslab
