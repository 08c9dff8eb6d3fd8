// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::pipeline {
namespace {

/// The oldest open ticket is at most so much older than the newest; the communicator takes twice as
/// many.
constexpr std::size_t kMostOpen = comm::Communicator::kMaxUnderWay / 2;

}  // namespace

Executor::Executor(const Program& program, int rank, comm::Communicator* group) : group_(group) {
  const int size = group == nullptr ? 1 : group->size();
  if (size != program.stages || rank < 0 || rank >= size ||
      (group != nullptr && group->rank() != rank)) {
    throw Error(ExitCode::internal,
                fmt::format("pipeline executor: rank {} of a program of {} stages, in a group of "
                            "{} as member {}",
                            rank, program.stages, size, group == nullptr ? 0 : group->rank()));
  }
  actions_ = program.ranks[static_cast<std::size_t>(rank)];
  std::size_t slots = 0;
  for (int chunk = 0; chunk < program.virtual_stages; ++chunk) {
    first_slot_.push_back(slots);
    slots += static_cast<std::size_t>(program.slot_count(rank, chunk));
  }
  slots_.resize(slots);
  open_.reserve(kMostOpen + 1);
}

Executor::Slot& Executor::slot(int chunk, int slot) {
  return slots_[first_slot_[static_cast<std::size_t>(chunk)] + static_cast<std::size_t>(slot)];
}

void Executor::run(Context& ctx, Worker& worker) {
  for (const Action& action : actions_) {
    if (action.kind == ActionKind::exchange)
      start(ctx, worker, action);
    else
      compute(ctx, worker, action);
    if (open_.empty()) continue;
    const Scope phase(ctx.recorder(), Phase::pipeline_comm);  // MPI may give up the core
    group_->progress();
  }
}

void Executor::finish(Context& ctx) {
  while (!open_.empty()) {
    comm::Ticket oldest = open_.front();
    wait(ctx, oldest, Phase::pipeline_comm);
  }
  std::ranges::fill(slots_, Slot{});
}

void Executor::start(Context& ctx, Worker& worker, const Action& exchange) {
  // Waiting cannot deadlock: an exchange needs nothing that comes after it.
  while (!open_.empty() && newest_ - open_.front() >= kMostOpen) {
    comm::Ticket oldest = open_.front();
    wait(ctx, oldest, Phase::pipeline_comm);
  }
  const Scope phase(ctx.recorder(), Phase::pipeline_comm);
  group_->group_begin();
  for (const Transfer& t : exchange.transfers) {
    const bool activation = t.payload == Payload::activation;
    if (t.sends) {
      group_->send(
          ctx, activation ? worker.output(t.chunk, t.slot) : worker.input_gradient(t.chunk, t.slot),
          t.peer);
    } else {
      group_->recv(
          ctx, activation ? worker.input(t.chunk, t.slot) : worker.output_gradient(t.chunk, t.slot),
          t.peer);
    }
  }
  const comm::Ticket ticket = group_->group_end(ctx);
  newest_ = ticket;
  open_.push_back(ticket);
  for (const Transfer& t : exchange.transfers) {
    Slot& mine = slot(t.chunk, t.slot);
    if (t.payload == Payload::activation)
      (t.sends ? mine.output : mine.input) = ticket;
    else
      (t.sends ? mine.input_gradient : mine.output_gradient) = ticket;
  }
}

void Executor::compute(Context& ctx, Worker& worker, const Action& action) {
  const auto& [kind, chunk, microbatch, index, transfers] = action;
  Slot& mine = slot(chunk, index);
  switch (kind) {
    case ActionKind::forward:
      wait(ctx, mine.output, Phase::pipeline_comm);
      wait(ctx, mine.input_gradient, Phase::pipeline_comm);
      wait(ctx, mine.input, Phase::pipeline_idle);
      worker.forward(chunk, index, microbatch);
      break;
    case ActionKind::backward:
      wait(ctx, mine.output_gradient, Phase::pipeline_idle);
      worker.backward(chunk, index, microbatch);
      break;
    case ActionKind::backward_input:
      wait(ctx, mine.output_gradient, Phase::pipeline_idle);
      worker.backward_input(chunk, index, microbatch);
      break;
    case ActionKind::backward_weight: worker.backward_weight(chunk, index, microbatch); break;
    case ActionKind::exchange: break;
  }
}

/// An exchange is waited for once, though several transfers are in it; tickets ascend in open_.
void Executor::wait(Context& ctx, comm::Ticket& ticket, Phase phase) {
  const comm::Ticket exchange = std::exchange(ticket, 0);
  const auto found = std::ranges::lower_bound(open_, exchange);
  if (exchange == 0 || found == open_.end() || *found != exchange) return;
  open_.erase(found);
  const Scope scope(ctx.recorder(), phase);
  group_->wait(ctx, exchange);
}

}  // namespace hyperslab::pipeline
