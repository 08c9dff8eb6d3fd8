// SPDX-License-Identifier: Apache-2.0
#include "step_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/optim/schedule.hpp"
#include "replicas.hpp"

namespace hyperslab::run {
namespace {

constexpr std::int64_t kLag = 2;               // the host acts on step s at the start of step s + 2
constexpr int kMostReportedSpikes = 3;         // under the policy log
constexpr std::int64_t kStepsBeforeSpike = 3;  // a checkpoint that is newer may share its cause

}  // namespace

std::string left_out_path(const Start& start) {
  return start.config.run.directory + "/left_out_steps.json";
}

StepLoop::StepLoop(const Parts& parts, std::int64_t first_step)
    : parts_(parts),
      first_step_(first_step),
      collected_(first_step - 1),
      targets_(parts.start.config) {}

std::int64_t StepLoop::run() {
  const std::int64_t final_step = parts_.start.final_step(parts_.data.last_step());
  std::int64_t step = first_step_ - 1;
  parts_.trainer.set_idle_work([this] { parts_.checkpoints.progress(); });
  while (step < final_step && !stop_ && !roll_back_) {
    one_step(++step);
    collect(step - kLag);
  }
  collect(step);
  if (!roll_back_) parts_.checkpoints.save_at_end(step);
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
  args.leave_out = parts_.spikes.leaves_out(step);
  args.stop_requested = parts_.start.is_asked_to_stop();
  args.traced =
      std::ranges::find(config.timing.trace_steps, step) != config.timing.trace_steps.end();
  parts_.start.stop->begin_step(now_seconds());
  parts_.records.begin_step(step, args.traced);
  parts_.trainer.step(args, parts_.loader);
  parts_.records.note_enqueued(step);
  name_bad_numbers(args);
  const std::int64_t compares = config.run.compare_replicas_every;
  if (compares > 0 && step % compares == 0) {
    compare_replicas(parts_.start.world, config.parallel, parts_.trainer.state().replica_sums(),
                     step);
    parts_.trainer.inspection().restart_clock();
  }
  const std::int64_t every = config.train.validate_every;
  const bool validates = (every > 0 && step % every == 0) || step == parts_.data.last_step();
  if (validates && parts_.data.validation_samples() != nullptr) validate(step);
  if (!roll_back_ && parts_.tasks.is_due_after(step, parts_.data.last_step())) score_tasks(step);
  if (!roll_back_ && parts_.samples.is_due_after(step, parts_.data.last_step())) sample(step);
  if (roll_back_ || !parts_.checkpoints.is_due_after(step)) return;
  collect(step);
  if (roll_back_) return;
  parts_.checkpoints.save(step);
  // Here it costs nothing to stop: this save is the last one.
  if (!parts_.start.world.all(!parts_.start.is_asked_to_stop())) note_stop_request();
}

/// Reads the results of all steps up to `step`, and waits for them; up to a spike for which
/// training goes back.
void StepLoop::collect(std::int64_t step) {
  while (collected_ < step && !roll_back_) {
    const ops::StepResult& result = parts_.trainer.result(++collected_);
    if (result.stop != 0) note_stop_request();
    parts_.checkpoints.add(result);
    targets_.add(result, parts_.start.is_first());
    const std::optional<Spikes::Spike> spike = parts_.spikes.take(result);
    if (spike && rolls_back_for(*spike)) return;
    parts_.records.take(result, parts_.trainer.inspection().times(collected_),
                        parts_.loader.key_shares(collected_), spike);
  }
}

/// Runs the pass on the weights or their average, as the deck asks for, and returns its result.
template <class Pass>
auto StepLoop::on_evaluated_weights(Pass&& pass) {
  const bool exchanges = parts_.start.config.optimizer.evaluate_ema;
  if (exchanges) parts_.trainer.state().exchange_averages();
  auto result = pass();
  if (exchanges) parts_.trainer.state().exchange_averages();
  return result;
}

void StepLoop::validate(std::int64_t step) {
  collect(step - 1);
  if (roll_back_) return;
  const double start = now_seconds();
  const train::Evaluation evaluation = on_evaluated_weights([&] {
    return parts_.trainer.evaluate(
        *parts_.data.validation_samples(), parts_.data.validation_count(), parts_.start.world,
        {.is_asked_to_stop = [&] { return parts_.start.is_asked_to_stop(); }});
  });
  parts_.trainer.inspection().restart_clock();
  parts_.start.stop->note_pause(now_seconds() - start);
  if (evaluation.is_whole) {
    parts_.records.note_validation(evaluation);
  } else {
    note_stop_request();
  }
  collect(step);
}

void StepLoop::score_tasks(std::int64_t step) {
  collect(step);
  if (roll_back_) return;
  parts_.records.finish_line();
  const double start = now_seconds();
  const bool is_whole =
      on_evaluated_weights([&] { return parts_.tasks.measure(step, parts_.trainer); });
  parts_.trainer.inspection().restart_clock();
  parts_.start.stop->note_pause(now_seconds() - start);
  if (!is_whole) note_stop_request();
}

void StepLoop::sample(std::int64_t step) {
  collect(step);
  if (roll_back_) return;
  parts_.records.finish_line();
  const double start = now_seconds();
  const bool is_whole =
      on_evaluated_weights([&] { return parts_.samples.take(step, parts_.trainer); });
  parts_.trainer.inspection().restart_clock();
  parts_.start.stop->note_pause(now_seconds() - start);
  if (!is_whole) note_stop_request();
}

void StepLoop::note_stop_request() {
  if (!stop_ && parts_.start.is_first()) {
    parts_.records.finish_line();
    log::info(
        fmt::format("stopping after step {} {}", step_, parts_.start.stop->reason(now_seconds())));
  }
  stop_ = true;
}

/// Collective. Acts on a spike after its update, which a policy may already have skipped; returns
/// whether training goes back for it.
bool StepLoop::rolls_back_for(const Spikes::Spike& spike) {
  if (spike.left_out) report(spike, "its batch is left out");
  if (spike.left_out || parts_.spikes.policy() != train::SpikePolicy::roll_back) {
    if (!spike.left_out) report(spike, "training goes on");
    return false;
  }
  const train::SpikeConfig& config = parts_.start.config.spikes;
  if (parts_.spikes.roll_backs() >= config.max_roll_backs) {
    throw Error(ExitCode::numerics,
                fmt::format("another spike after {} rollbacks (step {}, loss {:.4f}, gradient norm "
                            "{:.4g}); lower optimizer.lr, or raise spikes.max_roll_backs or "
                            "spikes.z_score",
                            parts_.spikes.roll_backs(), spike.step, spike.loss, spike.norm))
        .on_all_ranks();
  }
  const auto target = parts_.checkpoints.newest_up_to(spike.step - kStepsBeforeSpike);
  if (!target) {
    report(spike, fmt::format("training goes on: no checkpoint is {} steps older or more",
                              kStepsBeforeSpike));
    return false;
  }
  parts_.spikes.go_back_for(spike.step);
  comm::agree(parts_.start.world, [&] {
    if (!parts_.start.is_first()) return;
    io::write_text_file(left_out_path(parts_.start), parts_.spikes.left_out_text());
  });
  report(spike, fmt::format("training rolls back to step {} and leaves the batch out", *target));
  roll_back_ = target;
  return true;
}

namespace {

/// "6.3 standard deviations above its mean", or below it.
std::string deviation(double z) {
  return fmt::format("{:.1f} standard deviations {} its mean", std::abs(z),
                     z < 0 ? "below" : "above");
}

}  // namespace

void StepLoop::report(const Spikes::Spike& spike, const std::string& what) {
  if (!parts_.start.is_first()) return;
  const bool only_logs = parts_.spikes.policy() == train::SpikePolicy::log;
  if (only_logs && ++reported_spikes_ > kMostReportedSpikes) return;
  parts_.records.finish_line();
  const SpikeDetector::Verdict& verdict = spike.verdict;
  log::warn(fmt::format(
      "spike at step {}: loss {:.4f} ({}), gradient norm {:.4g} ({}); {}{}", spike.step, spike.loss,
      deviation(verdict.loss_z), spike.norm, deviation(verdict.norm_z), what,
      verdict.begins_anew
          ? fmt::format("; {} in a row: the statistics begin again", SpikeDetector::kMostInARow)
          : ""));
  if (only_logs && reported_spikes_ == kMostReportedSpikes) {
    log::info("further spikes are only recorded (metrics.jsonl, column spike)");
  }
}

/// The first of several steps in a row that are not finite is computed once more, by every rank for
/// itself, if the host knows its result at once and it has not changed the parameters.
void StepLoop::name_bad_numbers(const train::Trainer::StepArgs& args) {
  const train::Config& config = parts_.start.config;
  const bool at_once = parts_.trainer.context().device() == Device::cpu ||
                       parts_.spikes.policy() == train::SpikePolicy::skip;
  if (!at_once || config.precision.compute == Precision::fp16) return;
  const bool was_bad = newest_is_bad_;
  newest_is_bad_ = parts_.trainer.result(args.step).skipped != 0;
  if (was_bad || !newest_is_bad_) return;
  const auto bad = parts_.trainer.find_bad_numbers(args, parts_.loader);
  const std::string text = describe_bad_numbers(parts_.start.world, config.parallel, bad);
  if (!parts_.start.is_first()) return;
  parts_.records.finish_line();
  const std::int64_t batch = config.train.global_batch;
  const std::int64_t first = config.train.overfit_one_batch ? 0 : (args.step - 1) * batch;
  log::warn(
      fmt::format("step {} (samples {} to {} in the order of the run) was not finite, and "
                  "updates nothing; computed once more: {}",
                  args.step, first, first + batch - 1, text));
}

}  // namespace hyperslab::run
