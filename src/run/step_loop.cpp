// SPDX-License-Identifier: Apache-2.0
#include "step_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/optim/schedule.hpp"

namespace hyperslab::run {
namespace {

constexpr std::int64_t kLag = 2;  // the host acts on step s at the start of step s + 2

}  // namespace

StepLoop::StepLoop(const Parts& parts, std::int64_t first_step)
    : parts_(parts), first_step_(first_step), collected_(first_step - 1) {}

std::int64_t StepLoop::run() {
  const std::int64_t final_step = parts_.start.final_step(parts_.data.last_step());
  std::int64_t step = first_step_ - 1;
  parts_.trainer.set_idle_work([this] { parts_.checkpoints.progress(); });
  while (step < final_step && !stop_) {
    one_step(++step);
    collect(step - kLag);
  }
  collect(step);
  parts_.checkpoints.save_at_end(step);
  return step;
}

void StepLoop::one_step(std::int64_t step) {
  step_ = step;
  parts_.checkpoints.poll();
  fault::set_step(step);
  const train::Config& config = parts_.start.config;
  train::Trainer::StepArgs args;
  args.step = step;
  args.learning_rate =
      optim::learning_rate(config.schedule, config.optimizer.lr, step, parts_.data.last_step());
  args.stop_requested = parts_.start.is_asked_to_stop();
  args.traced =
      std::ranges::find(config.timing.trace_steps, step) != config.timing.trace_steps.end();
  parts_.start.stop->begin_step(now_seconds());
  parts_.records.begin_step(step, args.traced);
  parts_.trainer.step(args, parts_.loader);
  parts_.records.note_enqueued(step);
  const std::int64_t every = config.train.validate_every;
  const bool validates = (every > 0 && step % every == 0) || step == parts_.data.last_step();
  if (validates && parts_.data.validation_samples() != nullptr) validate(step);
  if (!parts_.checkpoints.is_due_after(step)) return;
  collect(step);
  parts_.checkpoints.save(step);
  // Here it costs nothing to stop: this save is the last one.
  if (!parts_.start.world.all(!parts_.start.is_asked_to_stop())) note_stop_request();
}

/// Reads the results of all steps up to `step`, and waits for them.
void StepLoop::collect(std::int64_t step) {
  while (collected_ < step) {
    const ops::StepResult& result = parts_.trainer.result(++collected_);
    if (result.stop != 0) note_stop_request();
    parts_.checkpoints.add(result);
    targets_.add(result, parts_.start.is_first());
    parts_.records.take(result, parts_.trainer.times(collected_));
  }
}

void StepLoop::validate(std::int64_t step) {
  collect(step - 1);
  const double start = now_seconds();
  const train::Evaluation evaluation =
      parts_.trainer.evaluate(*parts_.data.validation_samples(), parts_.data.validation_count(),
                              parts_.start.world, [&] { return parts_.start.is_asked_to_stop(); });
  parts_.trainer.restart_clock();
  parts_.start.stop->note_pause(now_seconds() - start);
  if (evaluation.is_whole) {
    parts_.records.note_validation(evaluation);
  } else {
    note_stop_request();
  }
  collect(step);
}

void StepLoop::note_stop_request() {
  if (!stop_ && parts_.start.is_first()) {
    parts_.records.finish_line();
    log::info(
        fmt::format("stopping after step {} {}", step_, parts_.start.stop->reason(now_seconds())));
  }
  stop_ = true;
}

}  // namespace hyperslab::run
