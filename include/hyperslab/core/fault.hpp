// SPDX-License-Identifier: Apache-2.0
// Named points at which a test can make a call fail. A program injects nothing.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace hyperslab::fault {

/// Answer of an injection to a write: let it write about half of its bytes.
inline constexpr int kShortWrite = -1;

/// Asks the injection, if there is one, before the call at `point` ("file.write") on `subject` (a
/// path): 0 lets the call happen, an errno makes it fail with that. From any thread.
[[nodiscard]] int at(const char* point, const std::string& subject);

/// Answers at(), as long as it lives, on the threads that ask. Only one may live at a time, and no
/// thread may ask while it is destroyed.
class Injection {
 public:
  using Answer = std::function<int(std::string_view point, const std::string& subject)>;
  explicit Injection(Answer answer);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;
  Injection(Injection&&) = delete;
  Injection& operator=(Injection&&) = delete;

 private:
  Answer answer_;
};

}  // namespace hyperslab::fault
