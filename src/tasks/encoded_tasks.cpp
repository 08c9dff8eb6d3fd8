// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/encoded_tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "hyperslab/core/error.hpp"

namespace hyperslab::tasks {

EncodedTasks::EncodedTasks(const std::vector<std::string>& files, const train::Config& config) {
  if (config.model.is_of_images()) {
    throw Error(ExitCode::usage, "tasks are questions in text, and the model is of images");
  }
  const std::string& vocabulary = config.data.vocabulary;
  if (vocabulary.empty()) {
    throw Error(ExitCode::usage,
                "tasks need the vocabulary that made the token files: set data.vocabulary to it (a "
                "folder, or bytes)");
  }
  const auto tokenizer = io::open_tokenizer(vocabulary);
  io::require_fits_model(*tokenizer, vocabulary, config.model.vocabulary);
  for (const std::string& file : files) {
    Task task = read_task(file);
    const auto same = std::ranges::find(tasks_, task.name, &Task::name);
    if (same != tasks_.end()) {
      throw Error(ExitCode::usage, fmt::format("{} and {} both hold a task '{}'; rename one",
                                               same->path, file, task.name));
    }
    std::vector<Request> of_task = encode(*tokenizer, task, config.model.context);
    if (with_endings(of_task).empty()) {
      throw Error(ExitCode::data,
                  fmt::format("{}: no ending has a token of its own after its context in the "
                              "vocabulary {}, so that there is nothing to score",
                              file, vocabulary));
    }
    std::ranges::move(of_task, std::back_inserter(requests_));
    tasks_.push_back(std::move(task));
  }
}

std::vector<Result> EncodedTasks::figures(std::span<const Score> scores) const {
  std::vector<Result> results;
  std::span<const Request> requests = requests_;
  for (const Task& task : tasks_) {
    std::size_t count = 0;
    for (const Question& question : task.questions) count += question.choices.size();
    results.push_back(tasks::figures(task, requests.first(count), scores.first(count)));
    requests = requests.subspan(count);
    scores = scores.subspan(count);
  }
  return results;
}

}  // namespace hyperslab::tasks
