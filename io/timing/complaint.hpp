// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace hyperslab::io {

/// A trouble that may come with every step and must not fill the log: told the first time, then at
/// most every ten minutes, and once when it is over.
class Complaint {
 public:
  /// Warns of `text`, if it is time to.
  void tell(const std::string& text);
  /// The trouble is over; `text` is logged if it was told of before.
  void settle(const std::string& text);

 private:
  std::optional<double> told_;  ///< seconds of the monotonic clock
};

}  // namespace hyperslab::io
