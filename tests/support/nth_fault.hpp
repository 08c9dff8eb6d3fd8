// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "hyperslab/core/fault.hpp"

namespace hyperslab::test {

inline constexpr int kKill = -2;  ///< the process kills itself instead of the call

/// Makes the n-th call at any fault point fail with `what`: an errno, fault::kShortWrite or kKill.
/// Calls to which `exempt` gives an answer other than 0 get that answer and are not counted.
class NthFault {
 public:
  NthFault(int n, int what, fault::Injection::Answer exempt = {})
      : n_(n),
        what_(what),
        exempt_(std::move(exempt)),
        injection_([this](std::string_view point, const std::string& subject) {
          return answer(point, subject);
        }) {}

  /// Whether there was an n-th call.
  [[nodiscard]] bool hit() const { return calls_ >= n_; }
  /// The point of the n-th call.
  [[nodiscard]] const std::string& point() const { return point_; }

 private:
  int answer(std::string_view point, const std::string& subject) {
    const int exempt = exempt_ ? exempt_(point, subject) : 0;
    if (exempt != 0) return exempt;
    if (++calls_ != n_) return 0;
    point_ = point;
    if (what_ == kKill) ::kill(::getpid(), SIGKILL);
    return what_;
  }

  int n_;
  int what_;
  fault::Injection::Answer exempt_;
  std::atomic<int> calls_{0};
  std::string point_;
  fault::Injection injection_;  ///< last, so that it asks nothing that is gone
};

}  // namespace hyperslab::test
