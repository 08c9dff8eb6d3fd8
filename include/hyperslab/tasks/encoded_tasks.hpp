// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hyperslab/tasks/figures.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::tasks {

/// Some tasks and the requests of all of them, one after the other.
class EncodedTasks {
 public:
  EncodedTasks() = default;
  /// Reads `files` and encodes them with the deck's vocabulary for its model. Throws Error(usage)
  /// if the deck names no vocabulary, its model is of images, or two files have one task's name;
  /// Error(data) for files and questions.
  EncodedTasks(const std::vector<std::string>& files, const train::Config& config);

  [[nodiscard]] bool empty() const { return tasks_.empty(); }
  [[nodiscard]] const std::vector<Request>& requests() const { return requests_; }
  /// Figures of every task, from the scores of requests().
  [[nodiscard]] std::vector<Result> figures(std::span<const Score> scores) const;

 private:
  std::vector<Task> tasks_;
  std::vector<Request> requests_;
};

}  // namespace hyperslab::tasks
