// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/eval/task_evaluator.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "hyperslab/train/setup.hpp"

namespace hyperslab::eval {
namespace {

constexpr int kMostBuckets = 4;      // each loads the checkpoint once more
constexpr Dim kLengthMultiple = 16;  // tokens

}  // namespace

TaskEvaluator::TaskEvaluator(comm::World& world, EvalDeck deck,
                             const std::vector<std::string>& files)
    : world_(world),
      config_(std::move(deck.config)),
      is_legal_(std::move(deck.is_legal)),
      averages_(deck.averages) {
  comm::agree(world_, [&] {
    tasks_ = tasks::EncodedTasks(files, config_);
    options_ = train::trainer_options(config_, world_.local_rank(), false);
  });
  options_.activity = &world_.activity();
  mesh_ = train::make_mesh(world_, config_, options_.device);
}

/// With parallel.sequence every rank of a tensor group has an equal part of the positions.
Dim TaskEvaluator::length_multiple() const { return kLengthMultiple * config_.parallel.tensor; }

/// As many positions in a microbatch as the deck's has, and no more sequences than there are.
train::TrainerOptions TaskEvaluator::options_for(const tasks::Bucket& bucket) const {
  train::TrainerOptions options = options_;
  options.T = bucket.T;
  const Dim ranks = config_.parallel.data;
  const Dim share = (std::ssize(bucket.requests) + ranks - 1) / ranks;
  const Dim positions = config_.train.microbatch * config_.model.context;
  options.B = std::clamp<Dim>(positions / bucket.T, 1, share);
  return options;
}

std::vector<TaskResults> TaskEvaluator::measure(const std::vector<std::string>& checkpoints) {
  std::vector<TaskResults> results;
  std::vector<std::vector<tasks::Score>> scores;
  for (const std::string& checkpoint : checkpoints) {
    results.push_back({checkpoint, 0, {}, std::ssize(tasks_.requests()), 0, {}});
    scores.push_back(tasks::scores_of_nothing(tasks_.requests()));
  }
  const auto buckets = tasks::make_buckets(tasks_.requests(), config_.model.context,
                                           length_multiple(), kMostBuckets);
  for (const tasks::Bucket& bucket : buckets) {
    LoadedModel model({world_, config_, *mesh_, options_for(bucket), is_legal_, averages_});
    for (std::size_t i = 0; i < checkpoints.size(); ++i) {
      results[i].step = model.load(checkpoints[i]);
      const auto start = std::chrono::steady_clock::now();
      (void)tasks::score(model.trainer(), tasks_.requests(), bucket.requests, world_, scores[i]);
      results[i].seconds += slowest_seconds_since(world_, start);
      if (&bucket == &buckets.front()) {
        results[i].footprint = train::footprint(world_, model.trainer());
      }
    }
  }
  comm::agree(world_, [&] {
    for (std::size_t i = 0; i < checkpoints.size(); ++i) {
      results[i].tasks = tasks_.figures(scores[i]);
    }
  });
  return results;
}

}  // namespace hyperslab::eval
