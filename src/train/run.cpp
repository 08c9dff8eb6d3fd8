// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/optim/schedule.hpp"
#include "hyperslab/train/machine_rate.hpp"
#include "hyperslab/train/same_tokens.hpp"
#include "norms.hpp"
#include "training_run.hpp"
#include "utc.hpp"

namespace hyperslab::train {
namespace {

constexpr std::int64_t kLag = 2;  // the host acts on step s at the start of step s + 2

}  // namespace

TrainingRun::TrainingRun(comm::World& world, Config config, RunOptions options)
    : world_(world), config_(std::move(config)), options_(std::move(options)) {
  checkpoints_ = config_.checkpoint.directory.empty() ? config_.run.directory + "/checkpoints"
                                                      : config_.checkpoint.directory;
  agree(world_, [&] { open_data(); });
  require_same_tokens(
      world_, {{"data.train", train_tokens_.get()}, {"data.validation", validation_tokens_.get()}});
  report_data_amount();
  open_vocabulary();
  TrainerOptions trainer_options;
  agree(world_,
        [&] { trainer_options = train::trainer_options(config_, world_.local_rank(), true); });
  trainer_options.activity = &world_.activity();
  device_ = trainer_options.device == Device::cuda ? device_name() : "cpu";
  mesh_ = make_mesh(world_, config_, trainer_options.device);
  report_placement();
  loader_ =
      std::make_unique<io::Loader>(*train_samples_, config_.train.global_batch, mesh_->at().data,
                                   config_.parallel.data, config_.train.overfit_one_batch);
  agree(world_, [&] {
    const Plan plan = make_plan(config_, trainer_options, world_.rank());
    trainer_ = std::make_unique<Trainer>(config_, *mesh_, trainer_options, &plan.memory);
    planned_traffic_ = plan.traffic;
    trainer_->initialize();
  });
  lock_directories();
  resume();
  if (nothing_left()) return;
  finite_ = FiniteSteps(first_step_);
  // Only now anything on disk changes: whatever is wrong with the input was found before.
  agree(world_, [&] {
    if (!is_first()) return;
    probe_directory(config_.run.directory);
    probe_directory(checkpoints_);
    note_abandoned_steps();
    if (wanted_resume() == "never" && set_earlier_checkpoints_aside()) lock_checkpoints();
    keep_locks();
  });
  count_validation_text();
  open_records();
}

void TrainingRun::open_data() {
  const Pause pause(world_.activity());
  const io::DataConfig& data = config_.data;
  const Dim T = config_.model.context;
  const auto sampling = data.sampling == "windows" ? io::Sampling::windows : io::Sampling::blocks;
  const std::uint64_t seed = config_.run.seed;
  io::DataTokens tokens = io::open_data(data, config_.model.vocabulary, seed);
  train_tokens_ = std::move(tokens.train);
  validation_tokens_ = std::move(tokens.validation);
  (void)train_tokens_->fingerprint();  // of what the first step reads, not the first checkpoint
  train_samples_ =
      std::make_unique<io::Samples>(*train_tokens_, sampling, T, seed, true, data.ignore_token);
  last_step_ = total_steps(config_, train_samples_->size());
  if (config_.schedule.warmup_steps > last_step_) {
    throw Error(
        ExitCode::usage,
        fmt::format("schedule.warmup_steps is {}, but the run has only {} steps ({} epochs of {} "
                    "samples); nearest: {}",
                    config_.schedule.warmup_steps, last_step_, config_.train.epochs,
                    train_samples_->size(), last_step_));
  }
  if (validation_tokens_) {
    validation_samples_ = std::make_unique<io::Samples>(*validation_tokens_, io::Sampling::blocks,
                                                        T, seed, false, data.ignore_token);
  }
}

std::int64_t TrainingRun::validation_count() const {
  return validation_samples(config_, validation_samples_->size());
}

void TrainingRun::open_records() {
  const std::string& directory = config_.run.directory;
  std::string folder;
  agree(world_, [&] {
    if (!is_first()) return;
    io::write_text_file(directory + "/deck.yaml", options_.deck_yaml);
    if (config_.train.log_norms > 0) {
      norms_ = std::make_unique<NormsLog>(directory + "/norms.jsonl", first_step_);
    }
    metrics_ = std::make_unique<io::MetricsLog>(directory + "/metrics.jsonl", first_step_);
    folder = io::next_start_folder(directory);
    keep_deck(folder);
  });
  folder = world_.broadcast(folder);
  const mesh::Coordinates& at = mesh_->at();
  const mesh::ParallelConfig& parallel = config_.parallel;
  agree(world_, [&] {
    timing_ = std::make_unique<io::TimingWriter>(
        folder,
        io::RankInfo{world_.rank(), world_.size(), world_.host(), device_, at.data, at.pipeline,
                     at.context, at.tensor, commit(), utc_now(), trainer_->context().threads(),
                     parallel.schedule, parallel.zero, parallel.sequence, trainer_->groups()});
  });
  const auto tokens = static_cast<double>(config_.train.global_batch * config_.model.context);
  flops_causal_ = tokens * model::flops_per_token(config_.model, config_.model.context, true);
  flops_full_ = tokens * model::flops_per_token(config_.model, config_.model.context, false);
  const MachineRate rate = machine_rate(world_, trainer_->context(), config_.precision.compute);
  rate_ = rate.flops;
  progress_ = std::make_unique<Progress>(is_first(), last_step_, config_.train.log_every);
  if (is_first()) {
    log::info(fmt::format(
        "{}: {:.3f} M parameters, {} on {} rank{} ({}); {}; {:.2f} GiB a rank; utilization against "
        "{}",
        config_.run.name, 1e-6 * static_cast<double>(model::parameter_count(config_.model)),
        mesh::describe(config_.parallel), world_.size(), world_.size() == 1 ? "" : "s", device_,
        train_tokens_->description(),
        static_cast<double>(trainer_->memory_plan().total()) / 1073741824.0,
        rate.describe(world_.size())));
  }
}

void TrainingRun::report_placement() {
  report_threads(world_);
  if (world_.size() == 1) return;
  const std::string table = mesh::placement_table(world_, config_.parallel, device_);
  const std::string warning = mesh::placement_warning(world_, config_.parallel);
  if (!is_first()) return;
  log::info(table);
  if (!warning.empty()) log::warn(warning);
}

ExitCode TrainingRun::run() {
  if (nothing_left()) return say_nothing_left();
  started_ = now_seconds();
  collected_ = first_step_ - 1;
  if (is_asked_to_stop()) return ExitCode::preempted;
  settle_algorithms();
  std::int64_t step = first_step_ - 1;
  while (step < final_step() && !stop_) {
    one_step(++step);
    collect(step - kLag);
  }
  collect(step);
  checkpoint_at_end(step);
  progress_->finish_line();
  flush_row();
  timing_->flush();
  summarize(step);
  return stop_ && step < last_step_ ? ExitCode::preempted : ExitCode::ok;
}

void TrainingRun::one_step(std::int64_t step) {
  step_ = step;
  Trainer::StepArgs args;
  args.step = step;
  args.learning_rate =
      optim::learning_rate(config_.schedule, config_.optimizer.lr, step, last_step_);
  args.stop_requested = options_.stop_signal != nullptr && *options_.stop_signal != 0;
  args.traced =
      std::ranges::find(config_.timing.trace_steps, step) != config_.timing.trace_steps.end();
  step_clock_.begin(step, now_seconds());
  trainer_->step(args, loader_.get());
  record_trace(step);
  if (config_.train.log_norms > 0 && step % config_.train.log_norms == 0 && is_first()) {
    norms_->append(step, *trainer_);
  }
  if (validation_samples_ && is_due(step, config_.train.validate_every)) validate(step);
  if (saves_behind(step) || finite_.save_is_due()) checkpoint(step);
}

void TrainingRun::record(std::int64_t step, const StepTimes& times) {
  flush_row();
  if (step % config_.timing.every != 0) return;
  row_.emplace();
  row_->times = times;
  row_->tokens = config_.train.global_batch / config_.parallel.data * config_.model.context;
  row_->memory_peak_bytes = trainer_->memory().peak_bytes();
  row_->memory_now_bytes = trainer_->memory().now_bytes();
  row_->groups = trainer_->traffic(step);
  if (trainer_->context().device() == Device::cuda) account_on_gpu(*row_);
}

/// On a GPU the host sees neither calls that a graph repeats, whose number is the plan's, nor what
/// a stream waits for, which phases tell of the groups of three axes and the world's.
void TrainingRun::account_on_gpu(io::TimingRow& row) const {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const auto waits = [&](comm::GroupRole role) {
    switch (role) {
      case comm::GroupRole::data: return row.times.phase(Phase::reduce_exposed);
      case comm::GroupRole::tensor: return row.times.phase(Phase::tensor_comm);
      case comm::GroupRole::pipeline:
        return row.times.phase(Phase::pipeline_comm) + row.times.phase(Phase::pipeline_idle);
      case comm::GroupRole::world: return row.times.phase(Phase::wait);
      default: return kUnknown;
    }
  };
  const std::vector<io::GroupInfo> groups = trainer_->groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& [role, size] = groups[i];
    io::GroupTraffic& traffic = row.groups[i];
    const auto planned = planned_traffic_.find(role);
    if (planned != planned_traffic_.end()) {
      const auto& [calls, bytes, seconds, exposed_seconds] = planned->second;
      traffic.calls = std::accumulate(calls.begin(), calls.end(), std::int64_t{0});
      traffic.bytes = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    }
    if (size == 1) continue;
    traffic.exposed_seconds = waits(role);
    if (role != comm::GroupRole::data && !config_.timing.groups) traffic.seconds = kUnknown;
  }
}

void TrainingRun::flush_row() {
  if (row_) timing_->append(*row_);
  row_.reset();
}

void TrainingRun::record_trace(std::int64_t step) {
  const Recorder& recorder = trainer_->context().recorder();
  if (!recorder.traced()) return;
  timing_->append_events(step, recorder.events());
  for (const MemoryMeter::Change& change : trainer_->memory().changes()) {
    timing_->append_memory(step, change.seconds - recorder.step_start(), change.bytes,
                           std::string(change.label));
  }
}

void TrainingRun::collect(std::int64_t step) {
  while (collected_ < step) {
    const ops::StepResult& result = trainer_->result(++collected_);
    if (result.stop != 0) note_stop_request();
    finite_.add(result);
    if (finite_.in_a_row() > FiniteSteps::kMostInARow) throw numerics_error(result);
    const StepTimes times = trainer_->times(collected_);
    record(collected_, times);
    memory_peak_ = std::max(memory_peak_, trainer_->memory().peak_bytes());
    check_targets(result);
    if (is_first()) report(result, times.step_seconds);
  }
}

void TrainingRun::report(const ops::StepResult& result, double step_seconds) {
  io::MetricsLine line;
  line.step = result.step;
  line.loss = result.loss_sum / result.tokens;
  line.grad_norm = result.gradient_norm;
  line.lr = result.learning_rate;
  line.tokens = result.step * config_.train.global_batch * config_.model.context;
  line.step_seconds = step_seconds;
  line.tokens_per_second =
      static_cast<double>(config_.train.global_batch * config_.model.context) / line.step_seconds;
  line.mfu = flops_causal_ / line.step_seconds / rate_;
  line.mfu_full = flops_full_ / line.step_seconds / rate_;
  line.perplexity = std::exp(line.loss);
  line.token_accuracy = result.correct / result.tokens;
  line.wall_seconds =
      earlier_seconds_ + step_clock_.end(result.step, step_seconds, now_seconds()) - started_;
  line.skipped_steps = result.skipped_steps;
  line.memory_peak_bytes = trainer_->memory().peak_bytes();
  line.validation = std::exchange(validation_, std::nullopt);
  last_loss_ = line.loss;
  metrics_->append(line);
  progress_->show(line);
}

void TrainingRun::validate(std::int64_t step) {
  collect(step - 1);
  const Evaluation evaluation =
      trainer_->evaluate(*validation_samples_, validation_count(), world_);
  trainer_->restart_clock();
  validation_ = {evaluation.loss(), evaluation.perplexity(), evaluation.token_accuracy(), {}};
  if (validation_text_) validation_->bits_per_byte = evaluation.bits_per_byte(*validation_text_);
  collect(step);
}

ExitCode TrainingRun::run_and_say_where() {
  try {
    return run();
  } catch (const Error& error) {
    // Ranks that fail alike leave in peace: nothing of theirs may still move data.
    if (error.is_on_all_ranks()) trainer_->wait_all();
    throw error.in_run(mesh::describe(mesh_->at()), step_);
  }
}

ExitCode run_training(comm::World& world, const Config& config, const RunOptions& options) {
  const comm::Watchdog watchdog = watch(world, config);
  return TrainingRun(world, config, options).run_and_say_where();
}

}  // namespace hyperslab::train
