// SPDX-License-Identifier: Apache-2.0
#include "training_run.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <filesystem>
#include <utility>

#include "algorithms.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/io/run_id.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/setup.hpp"
#include "preflight.hpp"
#include "run_summary.hpp"

namespace hyperslab::run {
namespace {

constexpr double kSlowSaveBytesPerSecond = 200e6;  // all ranks together, until a save has been seen
constexpr std::uint64_t kMostLeftOutBytes = 1 << 24;

/// Collective: hosts and placement of the ranks.
void report_placement(const Start& start, const std::string& device) {
  train::report_threads(start.world);
  if (start.world.size() == 1) return;
  const std::string table = mesh::placement_table(start.world, start.config.parallel, device);
  const std::string warning = mesh::placement_warning(start.world, start.config.parallel);
  if (!start.is_first()) return;
  log::info(table);
  if (!warning.empty()) log::warn(warning);
}

/// Logs which precisions this CPU computes natively and which it emulates in fp32.
void report_emulation(const Start& start) {
  const train::PrecisionConfig& precision = start.config.precision;
  if (!start.is_first()) return;
  if (precision.compute == Precision::bf16) {
    log::info(ops::cpu_multiplies_bf16()
                  ? "bf16 on CPU ranks: AVX512_BF16, or AMX, multiplies matrices; every other "
                    "operation computes in fp32 and rounds what it stores"
                  : "bf16 on CPU ranks: every operation computes in fp32 and rounds what it "
                    "stores, which is slower than precision.compute: fp32; this processor has no "
                    "AVX512_BF16");
  }
  if (precision.fp8()) {
    log::info(
        fmt::format("{} on CPU ranks: operands are rounded and multiplied in fp32, which is "
                    "slower than precision.gemm: compute",
                    name_of(precision.gemm)));
  }
}

/// True if any rank was asked to stop before the first step, on all ranks.
bool is_stopped_early(const Start& start, std::int64_t first_step) {
  if (start.world.all(!start.is_asked_to_stop())) return false;
  if (start.is_first()) log::info(fmt::format("stopped before step {} on request", first_step));
  return true;
}

}  // namespace

Start::Start(comm::World& ranks, train::Config deck, RunOptions command_line)
    : world(ranks),
      config(std::move(deck)),
      options(std::move(command_line)),
      checkpoints(config.checkpoint.directory.empty() ? config.run.directory + "/checkpoints"
                                                      : config.checkpoint.directory),
      stop(std::make_unique<StopRequest>(
          options.stop_signal,
          ranks.rank() == 0 ? time_limit(config.run.walltime_minutes, options.started_seconds)
                            : TimeLimit())) {}

TrainingRun::TrainingRun(comm::World& world, const train::Config& config, const RunOptions& options)
    : start_(world, config, options),
      data_(start_),
      tasks_(start_),
      samples_(start_),
      spikes_(config.spikes) {
  make_trainer();
  if (config.spikes.policy == train::SpikePolicy::skip) {
    trainer_->set_judge([this](std::int64_t step, double loss, double norm) {
      return spikes_.judge_before_update(step, loss, norm);
    });
  }
  locks_.emplace(start_);
  open_memory(start_.is_first() ? io::read_run_id(start_.checkpoints) : "");
  fault::reach("start.resume");
  point_ = resume(start_, data_, *trainer_, memory_ ? &*memory_ : nullptr);
  restore_spikes();
  if (nothing_left()) return;
  // Only now anything on disk changes: whatever is wrong with the input was found before.
  probe_directories(start_.world, start_.world.local_rank() == 0,
                    std::array{start_.config.run.directory, start_.checkpoints});
  const double bytes = start_.world.sum(static_cast<double>(trainer_->state().checkpoint_bytes()));
  start_.stop->expect_save(bytes / kSlowSaveBytesPerSecond);
  comm::agree(start_.world, [&] {
    fault::reach("start.directories");
    if (start_.is_first()) prepare_directories(static_cast<std::uint64_t>(bytes));
  });
  renew_memory();
  make_loop();
}

void TrainingRun::make_trainer() {
  fault::reach("start.memory");
  comm::World& world = start_.world;
  const train::Config& config = start_.config;
  train::TrainerOptions options;
  comm::agree(world, [&] { options = train::trainer_options(config, world.local_rank(), true); });
  options.activity = &world.activity();
  setting_.device = options.device == Device::cuda ? device_name() : "cpu";
  mesh_ = train::make_mesh(world, config, options.device);
  setting_.position = mesh_->position();
  report_placement(start_, setting_.device);
  if (start_.is_first() && start_.config.model.experts.in_turn) {
    log::warn(
        "experts.in_turn: tokens take experts in turn, whatever their scores; for "
        "measurements");
  }
  if (options.device == Device::cpu) report_emulation(start_);
  check_links(start_, *mesh_, options.device);
  loader_ = std::make_unique<io::Loader>(data_.train_samples(), config.train.global_batch,
                                         mesh_->at(mesh::kSamples), config.parallel.data,
                                         config.train.overfit_one_batch);
  loader_->count_keys(config.model.scores.window);
  plan::Plan plan;
  comm::agree(world, [&] { plan = plan::make_plan(config, options, world.rank()); });
  plan::require_host_memory(world, config, options, plan.memory, start_.options.is_legal);
  comm::agree(world, [&] {
    trainer_ = plan::make_trainer(config, *mesh_, options, plan.memory, start_.options.is_legal);
    setting_.traffic = plan.traffic;
    trainer_->state().initialize();
  });
  trainer_->state().share_initial_values();
}

/// Rank 0. `bytes`: of a checkpoint.
void TrainingRun::prepare_directories(std::uint64_t bytes) {
  abandoned_ = abandoned_steps(start_, point_.first_step);
  if (!locks_) throw Error(ExitCode::internal, "a run prepares its folders before it locks them");
  const bool is_fresh = start_.resume().from == io::ResumeFrom::nothing;
  if (point_.first_step == 1) std::filesystem::remove(left_out_path(start_));
  if (is_fresh && set_earlier_checkpoints_aside(start_)) locks_->lock_checkpoints_again();
  if (!memory_) io::remove_run_id(start_.checkpoints);  // hosts may hold an older attempt
  check_space(start_, bytes, point_.first_step, start_.final_step(data_.last_step()));
  locks_->keep();
}

/// Collective. `id`: on rank 0, of the directory of checkpoints.
void TrainingRun::open_memory(const std::string& id) {
  const io::CheckpointConfig& config = start_.config.checkpoint;
  if (config.memory_every == 0) return;
  run_id_ = id;
  memory_.emplace(start_.world, config.memory_directory,
                  io::MemoryCheckpoints::Run{start_.world.broadcast(run_id_), start_.checkpoints});
}

/// Collective, once the run goes on from a checkpoint. A run that goes back takes another id, so
/// that no host brings back steps of the attempt before.
void TrainingRun::renew_memory() {
  if (!memory_) return;
  std::string id;
  comm::agree(start_.world, [&] {
    if (!start_.is_first()) return;
    const bool goes_on = start_.resume().from == io::ResumeFrom::newest;
    id = goes_on ? io::read_run_id(start_.checkpoints) : "";
    if (id.empty()) id = io::write_run_id(start_.checkpoints);
  });
  open_memory(id);
  memory_->remove_forgotten();
}

/// Collective. A start from step 1 leaves nothing out.
void TrainingRun::restore_spikes() {
  comm::agree(start_.world, [&] { spikes_.restore(point_.spikes); });
  std::string left_out;
  comm::agree(start_.world, [&] {
    const std::string path = left_out_path(start_);
    if (!start_.is_first() || point_.first_step == 1 || !std::filesystem::exists(path)) return;
    left_out = io::read_text_file(path, kMostLeftOutBytes);
  });
  left_out = start_.world.broadcast(left_out);
  comm::agree(start_.world, [&] { spikes_.add_left_out(left_out, left_out_path(start_)); });
}

/// Collective: this start goes on as one that resumes from `step` would.
void TrainingRun::roll_back(std::int64_t step) {
  policy_->finish_save();
  records_->finish();
  trainer_->state().wait_all();
  trainer_->set_idle_work({});  // which was the loop's
  loop_.reset();
  policy_.reset();
  records_.reset();
  start_.options.resume = io::ResumeChoice{io::ResumeFrom::step, step};
  point_ = resume(start_, data_, *trainer_, memory_ ? &*memory_ : nullptr);
  renew_memory();
  restore_spikes();
  if (start_.is_first()) abandoned_ = abandoned_steps(start_, point_.first_step);
  make_loop();
}

/// Rank 0.
void TrainingRun::require_directory() {
  const bool is_new = locks_ && locks_->renew();
  if (is_new && memory_) io::write_run_id(start_.checkpoints, run_id_);
}

void TrainingRun::make_loop() {
  records_ = std::make_unique<RunRecords>(start_, data_, *trainer_, setting_, point_);
  tasks_.begin(point_.first_step);
  samples_.begin(point_.first_step, *trainer_);
  policy_ = std::make_unique<CheckpointPolicy>(
      CheckpointPolicy::Parts{start_, data_, *trainer_, *records_, algorithms_, spikes_, abandoned_,
                              memory_ ? &*memory_ : nullptr, [this] { require_directory(); }},
      point_.first_step);
  loop_ = std::make_unique<StepLoop>(StepLoop::Parts{start_, data_, *trainer_, *loader_, *records_,
                                                     *policy_, spikes_, tasks_, samples_},
                                     point_.first_step);
}

ExitCode TrainingRun::run() {
  try {
    return run_steps();
  } catch (const Error& error) {
    // Ranks that fail alike leave in peace: nothing of theirs may still move data.
    if (error.is_on_all_ranks()) trainer_->state().wait_all();
    throw error.in_run(mesh::describe(mesh_->position()), loop_ ? loop_->step() : 0);
  }
}

ExitCode TrainingRun::run_steps() {
  if (nothing_left()) {
    if (start_.is_first()) log_nothing_left();
    return ExitCode::ok;
  }
  if (is_stopped_early(start_, point_.first_step)) return ExitCode::preempted;
  algorithms_ = choose_algorithms(start_, *trainer_, *loader_, point_);
  std::int64_t step = 0;
  for (;;) {
    step = loop_->run();
    const auto target = loop_->roll_back();
    if (!target) break;
    roll_back(*target);
  }
  if (memory_) memory_->clear();  // everything is on the disk
  records_->finish();
  summarize(step);
  const bool ends_early = loop_->was_stopped() && step < data_.last_step();
  return ends_early ? ExitCode::preempted : ExitCode::ok;
}

void TrainingRun::log_nothing_left() const {
  const std::int64_t last_step = data_.last_step();
  const train::TrainConfig& train = start_.config.train;
  const bool at_end = point_.first_step > last_step;
  const char* const key = train.steps > 0 ? "train.steps" : "train.epochs";
  std::string limit = fmt::format("--stop-after {}", start_.options.stop_after);
  if (at_end) {
    limit = train.steps > 0 ? fmt::format("train.steps {}", last_step)
                            : fmt::format("train.epochs {} ({} steps)", train.epochs, last_step);
  }
  const std::string more = at_end ? fmt::format("with more steps (--set {}=...)", key)
                                  : "without --stop-after or with a later one";
  const std::int64_t step = point_.first_step - 1;
  const std::int64_t end = at_end ? last_step : start_.final_step(last_step);
  log::info(fmt::format(
      "nothing left to do: the checkpoint of step {} is {} {}; train on {}, or from step 1 "
      "with --resume never; {} stays as it is",
      step, step == end ? "at" : "beyond", limit, more, start_.config.run.directory));
}

/// Collective. Rank 0 logs how the run went and the next commands, with this run's paths.
void TrainingRun::summarize(std::int64_t step) const {
  const std::int64_t most = start_.world.max(records_->memory_peak());
  const std::int64_t least = -start_.world.max(-records_->memory_peak());
  if (!start_.is_first()) return;
  const train::Config& config = start_.config;
  RunSummary summary{.first_step = point_.first_step, .step = step, .last_step = data_.last_step()};
  summary.on_request = loop_->was_stopped();
  summary.seconds = records_->seconds();
  summary.all_seconds = records_->wall_seconds();
  summary.of_images = config.model.is_of_images();
  summary.targets = static_cast<double>((step - point_.first_step + 1) * config.train.global_batch *
                                        (summary.of_images ? 1 : config.model.context));
  summary.broken_images = loop_->broken_images();
  summary.last_loss = records_->last_loss();
  summary.spikes = spikes_.spikes();
  summary.left_out = spikes_.left_out();
  summary.least_memory = least;
  summary.most_memory = most;
  try {
    summary.best = best_validation(config.run.directory + "/metrics.jsonl");
    log::info(text_of(summary));
    log_next_commands(start_, data_, step);
  } catch (const std::exception& error) {  // the run itself has done its work
    log::warn(fmt::format("no summary: {}", error.what()));
  }
}

ExitCode run_training(comm::World& world, const train::Config& config, const RunOptions& options) {
  const comm::Watchdog watchdog = train::watch(world, config);
  const ExitCode code = TrainingRun(world, config, options).run();
  fault::reach("end.run");
  world.barrier();  // so that the watchdog sees a rank that hangs in its last work
  return code;
}

}  // namespace hyperslab::run
