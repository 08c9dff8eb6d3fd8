// SPDX-License-Identifier: Apache-2.0
// Evaluation of checkpoints by their answers to the questions of tasks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/eval/evaluator.hpp"
#include "hyperslab/tasks/encoded_tasks.hpp"

namespace hyperslab::eval {

/// The results of a checkpoint.
struct TaskResults {
  std::string checkpoint;
  std::int64_t step = 0;
  std::vector<tasks::Result> tasks;
  std::int64_t endings = 0;         ///< endings of all tasks that the model read
  double seconds = 0;               ///< duration of the forward passes, on the slowest rank
  train::Footprint footprint = {};  ///< with the longest sequences
};

/// The questions of some tasks as tokens, and the trainers that score them. Endings of about the
/// same length share a trainer, whose sequences are as long as the longest of them.
class TaskEvaluator {
 public:
  /// `files`: paths of task files. Collective over the world. Throws Error(usage): the deck names
  /// no vocabulary, or the model is of images; Error(data): a file or a question, the same on all
  /// ranks.
  TaskEvaluator(comm::World& world, EvalDeck deck, const std::vector<std::string>& files);

  /// Collective over the world. Throws Error(checkpoint), and Error(numerics) if a log-probability
  /// is no finite number.
  [[nodiscard]] std::vector<TaskResults> measure(const std::vector<std::string>& checkpoints);

 private:
  [[nodiscard]] Dim length_multiple() const;
  [[nodiscard]] train::TrainerOptions options_for(const tasks::Bucket& bucket) const;

  comm::World& world_;
  train::Config config_;
  plan::IsLegal is_legal_;
  bool averages_;
  tasks::EncodedTasks tasks_;
  train::TrainerOptions options_;
  std::unique_ptr<mesh::Mesh> mesh_;
};

}  // namespace hyperslab::eval
