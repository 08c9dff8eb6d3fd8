// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab {

/// Work that ops report on `meta`: floating-point operations, bytes read and written by a perfect
/// implementation that touches every operand once, and calls.
struct Work {
  double flops = 0;
  double bytes = 0;
  std::int64_t calls = 0;
  std::set<std::string, std::less<>> paths{};  ///< taken by the calls, if the op has several
};

/// The kernel that a problem of an op takes on the planned GPU, of those in the op's table.
struct KernelChoice {
  struct Refused {
    std::string kernel;
    std::string reason;  ///< in words
  };
  std::string kernel;
  std::string source;           ///< its file, and the names of kernels there; empty: a library's
  std::vector<Refused> before;  ///< rows before it, and why they do not suit
  std::vector<Refused> after;   ///< rows after it; without a reason one that suits, too
  std::int64_t calls = 0;
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
  /// Counts a call of an op with a problem, "64 x 1024 tokens, ...", that takes the kernel.
  void add_kernel(std::string_view op, const std::string& problem, KernelChoice choice);
  void clear() {
    rows_.clear();
    kernels_.clear();
  }
  [[nodiscard]] Work total() const;
  [[nodiscard]] Work component(std::string_view name) const;
  /// Null if the component has no such op.
  [[nodiscard]] const Work* find(std::string_view component, std::string_view op) const;
  using Key = std::pair<std::string, std::string>;
  [[nodiscard]] const std::map<Key, Work>& rows() const { return rows_; }
  /// Choices by (op, problem); of ops that have a table of kernels.
  [[nodiscard]] const std::map<Key, KernelChoice>& kernels() const { return kernels_; }

 private:
  std::map<Key, Work> rows_;
  std::map<Key, KernelChoice> kernels_;
};

}  // namespace hyperslab
