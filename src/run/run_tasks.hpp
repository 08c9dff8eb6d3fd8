// SPDX-License-Identifier: Apache-2.0
// The tasks that a model is scored on while it trains.
#pragma once

#include <cstdint>
#include <memory>

#include "hyperslab/io/line_log.hpp"
#include "hyperslab/tasks/encoded_tasks.hpp"
#include "start.hpp"

namespace hyperslab::run {

class RunTasks {
 public:
  /// Reads train.tasks; collective, and so are errors: as tasks::EncodedTasks.
  explicit RunTasks(const Start& start);
  /// From now on scores of `first_step` and later ones are recorded in the run's tasks.jsonl, in
  /// place of those that it may hold of these steps. Collective.
  void begin(std::int64_t first_step);
  [[nodiscard]] bool is_due_after(std::int64_t step, std::int64_t last_step) const;
  /// Scores the trainer's present parameters, logs and records the figures. Collective. False: it
  /// was cut short by a request to stop.
  [[nodiscard]] bool measure(std::int64_t step, train::Trainer& trainer);

 private:
  const Start& start_;
  tasks::EncodedTasks tasks_;
  std::unique_ptr<io::LineLog> log_;  // the first rank's
};

}  // namespace hyperslab::run
