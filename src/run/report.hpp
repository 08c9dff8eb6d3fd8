// SPDX-License-Identifier: Apache-2.0
// The lines that rank 0 prints for the user during a run.
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/io/timing.hpp"

namespace hyperslab::run {

/// "8 s", "2 min 21 s", "3 h 05 min".
[[nodiscard]] std::string duration(double seconds);

/// One live line on a terminal, plain lines every `log_every` steps elsewhere.
class Progress {
 public:
  Progress(bool enabled, std::int64_t total_steps, std::int64_t log_every);
  void show(const io::MetricsLine& line);
  /// Ends a live line, so that other text starts on a line of its own.
  void finish_line();

 private:
  [[nodiscard]] std::string text(const io::MetricsLine& line) const;
  bool enabled_;
  int columns_;  ///< width of the terminal; 0: there is none
  bool open_ = false;
  std::int64_t total_steps_;
  std::int64_t log_every_;
  double mean_step_seconds_ = 0;
};

}  // namespace hyperslab::run
