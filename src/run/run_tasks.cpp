// SPDX-License-Identifier: Apache-2.0
#include "run_tasks.hpp"

#include <fmt/format.h>

#include "hyperslab/core/log.hpp"
#include "hyperslab/tasks/records.hpp"

namespace hyperslab::run {

RunTasks::RunTasks(const Start& start) : start_(start) {
  const train::Config& config = start_.config;
  if (config.train.tasks.empty()) return;
  comm::agree(start_.world, [&] {
    tasks_ = tasks::EncodedTasks(tasks::find_tasks(config.train.tasks, tasks::kFolder), config);
  });
}

void RunTasks::begin(std::int64_t first_step) {
  log_.reset();
  comm::agree(start_.world, [&] {
    if (tasks_.empty() || !start_.is_first()) return;
    log_ = std::make_unique<io::LineLog>(start_.config.run.directory + "/tasks.jsonl", first_step);
  });
}

bool RunTasks::is_due_after(std::int64_t step, std::int64_t last_step) const {
  const std::int64_t every = start_.config.train.tasks_every;
  return !tasks_.empty() && ((every > 0 && step % every == 0) || step == last_step);
}

bool RunTasks::measure(std::int64_t step, train::Trainer& trainer) {
  std::vector<tasks::Score> scores = tasks::scores_of_nothing(tasks_.requests());
  const std::vector<std::size_t> order = tasks::with_endings(tasks_.requests());
  const bool is_whole = tasks::score(trainer, tasks_.requests(), order, start_.world, scores,
                                     [&] { return start_.is_asked_to_stop(); });
  if (!is_whole || !start_.is_first()) return is_whole;
  try {
    const std::vector<tasks::Result> results = tasks_.figures(scores);
    for (const tasks::Result& result : results) {
      const tasks::Figure& figure = result.figure(result.metric);
      log::info(fmt::format("step {}  {} {} {:.4f} (standard error {:.4f})", step, result.task,
                            figure.name, figure.value, figure.standard_error));
    }
    log_->append(tasks::record_line(step, results));
  } catch (const Error& error) {  // training itself decides about numbers that are not finite
    log::warn(fmt::format("step {} has no scores of tasks: {}", step, error.what()));
  }
  return true;
}

}  // namespace hyperslab::run
