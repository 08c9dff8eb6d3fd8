// SPDX-License-Identifier: Apache-2.0
#include "timeline.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "index.hpp"

namespace hyperslab::pipeline {
namespace {

constexpr int kUnknown = -1;

/// Ends of passes per (global stage, microbatch), filled in as ranks advance.
class Clock {
 public:
  Clock(const PipelineShape& shape, const std::vector<std::vector<ComputePass>>& schedules,
        const std::vector<std::vector<int>>& slots)
      : shape_(shape),
        schedules_(schedules),
        slots_(slots),
        stages_(shape.stages * shape.virtual_stages),
        forward_(cells(), kUnknown),
        gradient_(cells(), kUnknown),
        release_(cells(), kUnknown),
        ends_(schedules.size()) {}

  Timeline run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < shape_.stages; ++rank) moved = advance(rank) || moved;
    }
    for (std::size_t rank = 0; rank < schedules_.size(); ++rank) {
      require(ends_[rank].size() == schedules_[rank].size(), "a pipeline schedule blocks itself");
    }
    Timeline timeline{.ends = std::move(ends_), .messages = messages()};
    return timeline;
  }

 private:
  [[nodiscard]] std::size_t cells() const {
    return at(shape_.stages * shape_.virtual_stages) * at(shape_.microbatches);
  }
  [[nodiscard]] std::size_t cell(int stage, int microbatch) const {
    return at(stage) * at(shape_.microbatches) + at(microbatch);
  }
  [[nodiscard]] int slots(int stage) const {
    return slots_[at(stage % shape_.stages)][at(stage / shape_.stages)];
  }

  /// When stage's activation can leave for the next one; kUnknown so far.
  [[nodiscard]] int activation_instant(int stage, int microbatch) const {
    const int made = forward_[cell(stage, microbatch)];
    const int before = microbatch - slots(stage + 1);
    if (made == kUnknown || before < 0) return made;
    const int free = release_[cell(stage + 1, before)];
    return free == kUnknown ? kUnknown : std::max(made, free);
  }

  /// When everything that the pass needs is there, except that its rank may be busy.
  [[nodiscard]] int ready(int stage, const ComputePass& pass) const {
    const int i = pass.microbatch;
    if (pass.kind == ActionKind::backward_weight) return gradient_[cell(stage, i)];
    if (pass.kind != ActionKind::forward) {
      return stage == stages_ - 1 ? forward_[cell(stage, i)] : gradient_[cell(stage + 1, i)];
    }
    const int input = stage == 0 ? 0 : activation_instant(stage - 1, i);
    // No schedule waits for `sent`: where the input is there, the slot's last output has left. So a
    // later microbatch here is refused as a schedule that blocks itself, and an earlier one changes
    // no program; check_structure finds a program that would write over an output still to be sent.
    const int before = i - slots(stage);
    const int sent = stage == stages_ - 1 || before < 0 ? 0 : activation_instant(stage, before);
    return input == kUnknown || sent == kUnknown ? kUnknown : std::max(input, sent);
  }

  void record(int stage, const ComputePass& pass, int end) {
    const std::size_t here = cell(stage, pass.microbatch);
    if (pass.kind == ActionKind::forward) forward_[here] = end;
    if (pass.kind == ActionKind::backward || pass.kind == ActionKind::backward_input)
      gradient_[here] = end;
    const ActionKind last = shape_.schedule == Schedule::forward_only ? ActionKind::forward
                                                                      : ActionKind::backward_weight;
    if (pass.kind == last || pass.kind == ActionKind::backward) release_[here] = end;
  }

  bool advance(int rank) {
    const std::vector<ComputePass>& passes = schedules_[at(rank)];
    std::vector<int>& ends = ends_[at(rank)];
    const std::size_t before = ends.size();
    while (ends.size() < passes.size()) {
      const ComputePass& pass = passes[ends.size()];
      const int stage = pass.chunk * shape_.stages + rank;
      const int start = ready(stage, pass);
      if (start == kUnknown) break;
      const int end = std::max(start, ends.empty() ? 0 : ends.back()) + unit_cost(pass.kind);
      ends.push_back(end);
      record(stage, pass, end);
    }
    return ends.size() > before;
  }

  [[nodiscard]] std::vector<Message> messages() const {
    std::vector<Message> all;
    const bool trains = shape_.schedule != Schedule::forward_only;
    for (int stage = 0; stage + 1 < stages_; ++stage) {
      for (int i = 0; i < shape_.microbatches; ++i) {
        all.push_back({activation_instant(stage, i), Payload::activation, stage, stage + 1, i});
        if (!trains) continue;
        all.push_back({gradient_[cell(stage + 1, i)], Payload::gradient, stage + 1, stage, i});
      }
    }
    const auto key = [](const Message& m) {
      return std::tuple(m.instant, m.payload, m.from, m.microbatch);
    };
    std::ranges::sort(all, {}, key);
    return all;
  }

  const PipelineShape& shape_;
  const std::vector<std::vector<ComputePass>>& schedules_;
  const std::vector<std::vector<int>>& slots_;
  int stages_;
  std::vector<int> forward_;   ///< its activation is made
  std::vector<int> gradient_;  ///< its input gradient is made
  std::vector<int> release_;   ///< its slot is free
  std::vector<std::vector<int>> ends_;
};

int most_in_flight(const std::vector<ComputePass>& passes, int chunk) {
  int in_flight = 0;
  int most = 0;
  for (const ComputePass& pass : passes) {
    if (pass.chunk != chunk || pass.kind == ActionKind::backward_input) continue;
    in_flight += pass.kind == ActionKind::forward ? 1 : -1;
    most = std::max(most, in_flight);
  }
  return most;
}

}  // namespace

std::vector<std::vector<int>> slots_of(const PipelineShape& shape,
                                       const std::vector<std::vector<ComputePass>>& schedules) {
  std::vector<std::vector<int>> slots;
  for (const std::vector<ComputePass>& passes : schedules) {
    std::vector<int>& of_rank = slots.emplace_back();
    for (int chunk = 0; chunk < shape.virtual_stages; ++chunk) {
      of_rank.push_back(shape.schedule == Schedule::forward_only ? std::min(shape.microbatches, 2)
                                                                 : most_in_flight(passes, chunk));
    }
  }
  return slots;
}

Timeline make_timeline(const PipelineShape& shape,
                       const std::vector<std::vector<ComputePass>>& schedules,
                       const std::vector<std::vector<int>>& slots) {
  return Clock(shape, schedules, slots).run();
}

}  // namespace hyperslab::pipeline
