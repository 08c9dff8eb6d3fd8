// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace hyperslab::io {

/// A problem that may come with every step and must not fill the log: logged the first time, then
/// at most every ten minutes, and once when it is over.
class Complaint {
 public:
  /// Logs `text` as a warning, if it is time to.
  void warn(const std::string& text);
  /// The problem is over; logs `text` if there was a warning before.
  void resolve(const std::string& text);

 private:
  std::optional<double> warned_;  ///< seconds of the monotonic clock
};

}  // namespace hyperslab::io
