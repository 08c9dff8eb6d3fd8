// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace hyperslab::nvtx {

/// True if NVIDIA's profilers get named ranges. Off unless HYPERSLAB_NVTX=1 is in the
/// environment or enable() was called; without CUDA it stays off. A context asks
/// once, when it is made: call enable() before.
[[nodiscard]] bool enabled();
void enable();

/// Opens and closes a range of this thread. `name` ends with a zero, as literals do.
void push(std::string_view name);
void pop();

/// A range for the life of the object, if `on`.
class Range {
 public:
  Range(bool on, std::string_view name) : on_(on) {
    if (on_) push(name);
  }
  ~Range() {
    if (on_) pop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  Range(Range&&) = delete;
  Range& operator=(Range&&) = delete;

 private:
  bool on_;
};

}  // namespace hyperslab::nvtx
