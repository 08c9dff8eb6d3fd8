// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "hyperslab/core/error.hpp"

namespace hyperslab::tasks {
namespace {

/// Mean and standard error of numbers that arrive one after the other (Welford 1962).
class Mean {
 public:
  void add(double value) {
    ++count_;
    const double before = value - mean_;
    mean_ += before / static_cast<double>(count_);
    squares_ += before * (value - mean_);
  }
  [[nodiscard]] double value() const { return mean_; }
  [[nodiscard]] double standard_error() const {
    if (count_ < 2) return std::numeric_limits<double>::quiet_NaN();
    const auto n = static_cast<double>(count_);
    return std::sqrt(squares_ / (n - 1) / n);
  }

 private:
  std::int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

/// Characters of valid UTF-8.
double characters(std::string_view text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return static_cast<double>(std::ranges::count_if(text, begins));
}

/// The divisor of the log-probability of an ending. One without tokens has the
/// log-probability 0, whatever it is divided by.
double divisor(const std::string& metric, const Choice& choice, const Request& request) {
  if (metric == "acc_norm") return characters(choice.ending);
  if (metric == "acc_bytes") return static_cast<double>(choice.ending.size());
  if (metric == "acc_token") return static_cast<double>(std::max<std::int64_t>(1, request.ending));
  return 1;
}

/// The choice of the largest quotient; `first`: of its requests.
int answer(const Question& question, const std::string& metric, std::span<const Request> requests,
           std::span<const Score> scores, std::size_t first) {
  int best = 0;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    const double quotient = scores[first + i].log_probability /
                            divisor(metric, question.choices[i], requests[first + i]);
    if (quotient <= largest) continue;
    largest = quotient;
    best = static_cast<int>(i);
  }
  return best;
}

Figure choice_figure(const Task& task, const std::string& metric, std::span<const Request> requests,
                     std::span<const Score> scores) {
  Mean mean;
  std::size_t first = 0;
  for (const Question& question : task.questions) {
    mean.add(answer(question, metric, requests, scores, first) == question.label ? 1 : 0);
    first += question.choices.size();
  }
  return {metric, mean.value(), mean.standard_error()};
}

Figure completion_figure(const std::string& metric, std::span<const Score> scores) {
  Mean mean;
  if (metric == "acc") {
    for (const Score& score : scores) mean.add(score.is_likeliest ? 1 : 0);
    return {metric, mean.value(), mean.standard_error()};
  }
  for (const Score& score : scores) mean.add(score.log_probability);
  const double perplexity = std::exp(-mean.value());
  return {metric, perplexity, perplexity * mean.standard_error()};
}

void require_finite(const Task& task, std::span<const Score> scores) {
  std::size_t i = 0;
  for (const Question& question : task.questions) {
    for (std::size_t choice = 0; choice < question.choices.size(); ++choice, ++i) {
      if (std::isfinite(scores[i].log_probability)) continue;
      throw Error(
          ExitCode::numerics,
          fmt::format("{}:{}: the log-probability of an ending is {}, no finite number: the "
                      "weights are damaged, or activations leave the range of "
                      "precision.compute",
                      task.path, question.line, scores[i].log_probability));
    }
  }
}

}  // namespace

const Figure& Result::figure(const std::string& name) const {
  const auto found = std::ranges::find(figures, name, &Figure::name);
  require(found != figures.end(), "a task has no such figure");
  return *found;
}

Result figures(const Task& task, std::span<const Request> requests, std::span<const Score> scores) {
  require(requests.size() == scores.size(), "requests and scores differ in number");
  require_finite(task, scores);
  Result result;
  result.task = task.name;
  result.metric = task.metric;
  result.questions = std::ssize(task.questions);
  result.endings = std::ssize(requests);
  for (const std::string& metric : metrics_of(task.kind)) {
    result.figures.push_back(task.kind == Kind::completion
                                 ? completion_figure(metric, scores)
                                 : choice_figure(task, metric, requests, scores));
  }
  return result;
}

}  // namespace hyperslab::tasks
