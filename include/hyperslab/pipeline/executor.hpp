// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/pipeline/schedule.hpp"

namespace hyperslab::pipeline {

/// Work that an executor drives: the chunks of one rank, with the slots that the program asks for.
///
/// Memory of one slot: output_gradient and input_gradient may be the same; input, output and the
/// gradients must not overlap, and slots must not overlap each other. While something is sent from
/// a slot, these may already happen there: the next activation is received into `input` (once the
/// last backward part is done; forward_only: the forward); backward_weight runs, which must leave
/// input_gradient as it is. Everything else waits for the sends.
///
/// Passes enter their own Phase (forward, backward) and report their microbatch to the recorder.
/// The last global stage makes its own output gradient from the loss, the first one needs no input:
/// their views are not asked for.
class Worker {
 public:
  Worker() = default;
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker(Worker&&) = delete;
  Worker& operator=(Worker&&) = delete;

  virtual void forward(int chunk, int slot, int microbatch) = 0;
  /// Both parts of the backward pass.
  virtual void backward(int chunk, int slot, int microbatch) = 0;
  /// The first part, which ends with input_gradient; the second one's operands stay in the slot.
  virtual void backward_input(int chunk, int slot, int microbatch) = 0;
  virtual void backward_weight(int chunk, int slot, int microbatch) = 0;

  [[nodiscard]] virtual View input(int chunk, int slot) = 0;            ///< receives an activation
  [[nodiscard]] virtual CView output(int chunk, int slot) = 0;          ///< is sent on
  [[nodiscard]] virtual View output_gradient(int chunk, int slot) = 0;  ///< receives a gradient
  [[nodiscard]] virtual CView input_gradient(int chunk, int slot) = 0;  ///< is sent back
};

/// Runs the program of one rank. The only code that runs a schedule: on the CPU a wait blocks the
/// host, on a GPU it orders streams.
class Executor {
 public:
  /// `group`: the pipeline group, whose size is program.stages and whose member `rank` this is;
  /// null only if stages is 1. It must outlive the executor, and no one else may exchange
  /// messages over it during a run.
  Executor(const Program& program, int rank, comm::Communicator* group);

  /// All actions of this rank. Data are waited for before they are used (Phase::pipeline_idle),
  /// sends before their buffers are written again (Phase::pipeline_comm). Sends may still be
  /// running when it returns; the next run goes on from there. Allocates nothing after the first
  /// run.
  void run(Context& ctx, Worker& worker);
  /// Waits for all sends in progress. To be called before another executor uses the same slots,
  /// before the worker's memory is used for anything else, and before the executor is destroyed.
  void finish(Context& ctx);

 private:
  /// Tickets of the newest transfers of a slot; 0: none.
  struct Slot {
    comm::Ticket input = 0;
    comm::Ticket output = 0;
    comm::Ticket output_gradient = 0;
    comm::Ticket input_gradient = 0;
  };

  [[nodiscard]] Slot& slot(int chunk, int slot);
  void start(Context& ctx, Worker& worker, const Action& exchange);
  void compute(Context& ctx, Worker& worker, const Action& action);
  void wait(Context& ctx, comm::Ticket& ticket, Phase phase);

  std::vector<Action> actions_;
  comm::Communicator* group_;
  std::vector<std::size_t> first_slot_;  ///< per chunk, in slots_
  std::vector<Slot> slots_;
  std::vector<comm::Ticket> open_;  ///< not yet waited for, oldest first
  comm::Ticket newest_ = 0;         ///< waited for or not
};

}  // namespace hyperslab::pipeline
