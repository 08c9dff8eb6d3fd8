// SPDX-License-Identifier: Apache-2.0
// The summary at the end of a run: figures, and the commands that go on from there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run_data.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// Figures of a start that trained at least one step.
struct RunSummary {
  struct Validation {
    double loss = 0;
    std::int64_t step = 0;
  };
  std::int64_t first_step = 1;
  std::int64_t step = 0;       ///< the newest
  std::int64_t last_step = 0;  ///< the run's
  bool on_request = false;     ///< stopped by a signal
  double seconds = 0;          ///< duration of this start
  double all_seconds = 0;      ///< duration of all starts
  double targets = 0;          ///< targets of this start, on all ranks: tokens of text, images
  bool of_images = false;
  std::int64_t broken_images = 0;  ///< broken ones among the targets, each as often as it was met
  double last_loss = 0;
  std::int64_t spikes = 0;              ///< steps of the whole run
  std::int64_t left_out = 0;            ///< spikes that updated nothing
  std::optional<Validation> best = {};  ///< best validation of the whole run
  std::int64_t least_memory = 0;        ///< bytes at the peak, of the rank that used least
  std::int64_t most_memory = 0;
};

/// One or two lines.
[[nodiscard]] std::string text_of(const RunSummary& summary);

/// The lowest validation loss that a metrics.jsonl holds; none if there is no such file or line.
[[nodiscard]] std::optional<RunSummary::Validation> best_validation(const std::string& path);

/// Words as a shell takes them.
[[nodiscard]] std::string shell_line(const std::vector<std::string>& words);

/// The words that start the run again, so that it goes on from its newest checkpoint: the words of
/// `command` without --resume and --stop-after, and with `more` at the end.
[[nodiscard]] std::vector<std::string> resume_words(const StartCommand& command,
                                                    const std::vector<std::string>& more);

/// Logs the commands that can follow the run's `step`: train on or resume, generate, plot.
void log_next_commands(const Start& start, const RunData& data, std::int64_t step);

}  // namespace hyperslab::run
