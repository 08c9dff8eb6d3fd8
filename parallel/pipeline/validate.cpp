// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/validate.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "checker.hpp"
#include "hyperslab/core/error.hpp"
#include "index.hpp"
#include "queues.hpp"

namespace hyperslab::pipeline {
namespace {

/// Most slots taken at once, per chunk, in the order of a rank's program.
std::vector<int> peak_slots(const Program& program, int rank) {
  std::vector<int> taken(at(program.virtual_stages));
  std::vector<int> most(at(program.virtual_stages));
  const auto take = [&](int chunk) {
    most[at(chunk)] = std::max(most[at(chunk)], ++taken[at(chunk)]);
  };
  const bool trains = program.schedule != Schedule::forward_only;
  for (const Action& action : program.ranks[at(rank)]) {
    for (const Transfer& t : action.transfers) {
      if (!t.sends && t.payload == Payload::activation) take(t.chunk);
    }
    if (action.kind == ActionKind::exchange) continue;
    const bool forward = action.kind == ActionKind::forward;
    if (forward && program.is_first(rank, action.chunk)) take(action.chunk);
    if (forward ? !trains : action.kind != ActionKind::backward_input) --taken[at(action.chunk)];
  }
  return most;
}

}  // namespace

double Costs::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::forward: return forward;
    case ActionKind::backward: return backward_input + backward_weight;
    case ActionKind::backward_input: return backward_input;
    case ActionKind::backward_weight: return backward_weight;
    case ActionKind::exchange: return transfer;
  }
  return 0;
}

double Simulation::idle_fraction() const {
  return std::accumulate(idle.begin(), idle.end(), 0.0) /
         std::accumulate(busy.begin(), busy.end(), 0.0);
}

std::vector<std::string> problems(const Program& program) {
  std::vector<std::string> found = check_structure(program);
  if (!found.empty()) return found;
  const std::string stuck = run_queues(program, {}).stuck;
  if (!stuck.empty()) found.push_back(stuck);
  return found;
}

void validate(const Program& program) {
  const std::vector<std::string> found = problems(program);
  if (found.empty()) return;
  throw Error(ExitCode::internal,
              "pipeline schedule " + std::string(name_of(program.schedule)) + ": " + found.front());
}

Simulation simulate(const Program& program, const Costs& costs) {
  QueueRun run = run_queues(program, costs);
  if (!run.stuck.empty()) throw Error(ExitCode::internal, "pipeline program: " + run.stuck);
  Simulation result;
  for (int rank = 0; rank < program.stages; ++rank) {
    double busy = 0;
    for (std::size_t i = 0; i < program.ranks[at(rank)].size(); ++i) {
      const ActionKind kind = program.ranks[at(rank)][i].kind;
      if (kind != ActionKind::exchange) busy += costs.of(kind);
      result.seconds = std::max(result.seconds, run.actions[at(rank)][i].end);
    }
    result.busy.push_back(busy);
    result.peak_slots.push_back(peak_slots(program, rank));
  }
  for (const double busy : result.busy) result.idle.push_back(result.seconds - busy);
  result.actions = std::move(run.actions);
  return result;
}

double ideal_idle_fraction(Schedule schedule, int stages, int virtual_stages, int microbatches) {
  const int parts = schedule == Schedule::zero_bubble ? 3 : virtual_stages;
  return static_cast<double>(stages - 1) / (static_cast<double>(parts) * microbatches);
}

}  // namespace hyperslab::pipeline
