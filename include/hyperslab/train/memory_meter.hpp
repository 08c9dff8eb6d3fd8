// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hyperslab::train {

/// Bytes of arenas in use: parameters and state always, a slot from the start of its
/// forward to the end of its backward.
class MemoryMeter {
 public:
  struct Change {
    double seconds = 0;  ///< monotonic clock
    std::int64_t bytes = 0;
    std::string_view label;  ///< a literal
  };
  explicit MemoryMeter(std::size_t trace_capacity = 4096) { changes_.reserve(trace_capacity); }

  void begin_step() {
    peak_ = now_;
    changes_.clear();
  }
  /// Positive or negative.
  void change(std::int64_t bytes, std::string_view label);
  [[nodiscard]] std::int64_t now_bytes() const { return now_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_; }  ///< since begin_step
  [[nodiscard]] const std::vector<Change>& changes() const { return changes_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
  std::vector<Change> changes_;
};

}  // namespace hyperslab::train
