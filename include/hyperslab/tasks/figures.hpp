// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/tasks/scoring.hpp"

namespace hyperslab::tasks {

struct Figure {
  std::string name;
  double value = 0;
  double standard_error = 0;  ///< not-a-number of a single question
};

/// Figures that a model reached in a task.
struct Result {
  std::string task;
  std::string metric;  ///< the figure that stands for the task
  std::int64_t questions = 0;
  std::int64_t endings = 0;
  std::vector<Figure> figures;  ///< as metrics_of(kind)
  [[nodiscard]] const Figure& figure(const std::string& name) const;
};

/// The figures of a task from the scores of its requests, which encode() gave.
///
/// Of a multiple choice the share of questions whose label has the largest: acc: log-probability;
/// acc_norm: that divided by the ending's characters, acc_bytes: by its bytes in UTF-8, both
/// without the delimiter, as lm-evaluation-harness has them; acc_token: by its tokens, as llm.c. Of
/// equals the first is the answer. Of a completion acc: the share whose every token is the
/// likeliest; perplexity: exp of minus the mean log-probability of the endings.
///
/// The standard error is s / sqrt(n) of the sample's standard deviation s (with n - 1); for
/// perplexity it is perplexity times the mean log-probability's (the delta method; the harness
/// draws bootstrap samples). Throws Error(numerics) that names the line whose log-probability is no
/// finite number.
[[nodiscard]] Result figures(const Task& task, std::span<const Request> requests,
                             std::span<const Score> scores);

}  // namespace hyperslab::tasks
