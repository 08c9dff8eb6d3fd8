// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/schedule.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "timeline.hpp"

namespace hyperslab::pipeline {
namespace {

[[noreturn]] void refuse(const PipelineShape& shape, std::string_view reason) {
  throw Error(ExitCode::usage,
              fmt::format("pipeline schedule {} with {} stages x {} virtual stages and {} "
                          "microbatches: {}",
                          name_of(shape.schedule), shape.stages, shape.virtual_stages,
                          shape.microbatches, reason));
}

void check(const PipelineShape& shape) {
  if (shape.stages < 1 || shape.virtual_stages < 1 || shape.microbatches < 1) {
    refuse(shape, "all three must be at least 1");
  }
  const bool chunks =
      shape.schedule == Schedule::interleaved || shape.schedule == Schedule::forward_only;
  if (shape.virtual_stages == 1) return;
  if (shape.stages == 1) refuse(shape, "one stage takes 1 virtual stage");
  if (!chunks) refuse(shape, "it takes 1 virtual stage; choose interleaved for more");
  if (shape.schedule == Schedule::interleaved && shape.microbatches % shape.stages != 0) {
    refuse(shape, fmt::format("expected a multiple of {} microbatches", shape.stages));
  }
}

/// Puts one rank's passes and messages into one sequence.
class RankProgram {
 public:
  RankProgram(const PipelineShape& shape, const std::vector<int>& slots, int rank)
      : shape_(shape), slots_(slots), rank_(rank) {}

  void add(const ComputePass& pass) {
    const int slot = pass.microbatch % slots_[static_cast<std::size_t>(pass.chunk)];
    actions_.push_back({pass.kind, pass.chunk, pass.microbatch, slot, {}});
    instant_ = -1;
  }

  /// Messages come in the order of their instants.
  void add(const Message& message, bool sends) {
    if (instant_ != message.instant) {
      actions_.push_back({ActionKind::exchange, -1, -1, -1, {}});
      instant_ = message.instant;
    }
    const int mine = sends ? message.from : message.to;
    const int theirs = sends ? message.to : message.from;
    const int chunk = mine / shape_.stages;
    const int slot = message.microbatch % slots_[static_cast<std::size_t>(chunk)];
    actions_.back().transfers.push_back({.sends = sends,
                                         .payload = message.payload,
                                         .chunk = chunk,
                                         .microbatch = message.microbatch,
                                         .slot = slot,
                                         .peer = theirs % shape_.stages});
  }

  [[nodiscard]] bool has(int stage) const { return stage % shape_.stages == rank_; }
  [[nodiscard]] std::vector<Action> take() { return std::move(actions_); }

 private:
  const PipelineShape& shape_;
  const std::vector<int>& slots_;
  int rank_;
  int instant_ = -1;  ///< instant of the exchange at the end of actions_; -1: none
  std::vector<Action> actions_;
};

/// A message goes before the first pass that ends after its instant.
std::vector<Action> merge(RankProgram rank, const std::vector<ComputePass>& passes,
                          const std::vector<int>& ends, const std::vector<Message>& messages) {
  std::size_t next = 0;
  for (const Message& message : messages) {
    const bool sends = rank.has(message.from);
    if (!sends && !rank.has(message.to)) continue;
    while (next < passes.size() && ends[next] <= message.instant) rank.add(passes[next++]);
    rank.add(message, sends);
  }
  while (next < passes.size()) rank.add(passes[next++]);
  return rank.take();
}

}  // namespace

Program make_program(Schedule schedule, int stages, int virtual_stages, int microbatches) {
  const PipelineShape shape{schedule, stages, virtual_stages, microbatches};
  check(shape);
  const auto schedules = compute_schedules(shape);
  Program program{schedule, stages, virtual_stages, microbatches, {}, slots_of(shape, schedules)};
  const Timeline timeline = make_timeline(shape, schedules, program.slots);
  for (int rank = 0; rank < stages; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    program.ranks.push_back(merge(RankProgram(shape, program.slots[r], rank), schedules[r],
                                  timeline.ends[r], timeline.messages));
  }
  return program;
}

}  // namespace hyperslab::pipeline
