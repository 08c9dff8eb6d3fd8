// SPDX-License-Identifier: Apache-2.0
#include "run_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/plan/machine_rate.hpp"
#include "hyperslab/plan/units.hpp"
#include "hyperslab/train/setup.hpp"
#include "utc.hpp"

namespace hyperslab::run {

RunRecords::RunRecords(const Start& start, const RunData& data, train::Trainer& trainer,
                       RunSetting setting, const ResumePoint& point)
    : start_(start),
      data_(data),
      trainer_(trainer),
      setting_(std::move(setting)),
      earlier_seconds_(point.earlier_seconds) {
  fault::reach("start.records");
  validation_text_ = data_.count_validation_text();
  std::string folder;
  comm::agree(start_.world, [&] {
    if (start_.is_first()) folder = open_first_ranks_files(point.first_step);
  });
  folder = start_.world.broadcast(folder);
  comm::agree(start_.world, [&] { open_timing(folder); });
  const train::Config& config = start_.config;
  const auto tokens = static_cast<double>(config.train.global_batch * config.model.context);
  flops_full_ = tokens * train::flops_per_token(config, config.model.context, false);
  progress_ =
      std::make_unique<Progress>(start_.is_first(), data_.last_step(), config.train.log_every);
  if (trainer_.context().device() == Device::cuda) {
    device_trace_ = std::make_unique<DeviceTrace>(trainer_.context());
  }
  log_run();
  started_ = now_seconds();
}

/// Returns the folder of this start.
std::string RunRecords::open_first_ranks_files(std::int64_t first_step) {
  const std::string& directory = start_.config.run.directory;
  io::write_text_file(directory + "/deck.yaml", start_.options.deck_yaml);
  if (start_.config.train.log_norms > 0) {
    norms_ = std::make_unique<NormsLog>(directory + "/norms.jsonl", first_step);
  }
  metrics_ = std::make_unique<io::MetricsLog>(directory + "/metrics.jsonl", first_step);
  if (start_.config.run.tensorboard) {
    tensorboard_ = std::make_unique<io::TensorboardLog>(directory + "/tensorboard",
                                                        start_.world.host(), first_step);
  }
  std::string folder = io::next_start_folder(directory);
  keep_deck(folder);
  return folder;
}

/// Writes the deck of this start next to the decks of earlier ones.
void RunRecords::keep_deck(const std::string& start_folder) const {
  const std::filesystem::path decks = std::filesystem::path(start_.config.run.directory) / "decks";
  std::error_code error;
  std::filesystem::create_directories(decks, error);
  if (error) {
    throw Error(ExitCode::storage,
                decks.string() + ": cannot make this directory: " + error.message());
  }
  const std::string start = std::filesystem::path(start_folder).filename().string();
  io::write_text_file((decks / (start + ".yaml")).string(), start_.options.deck_yaml);
}

void RunRecords::open_timing(const std::string& folder) {
  const comm::World& world = start_.world;
  using mesh::Axis;
  const mesh::Position& at = setting_.position;
  const mesh::ParallelConfig& parallel = start_.config.parallel;
  const nn::ExpertsConfig& experts = start_.config.model.experts;
  const Dim layers = start_.is_first() ? experts.layers_of(start_.config.model.layers) : 0;
  timing_ = std::make_unique<io::TimingWriter>(
      folder,
      io::RankInfo{world.rank(), world.size(), world.host(), setting_.device, at.at(mesh::kSamples),
                   at.at(Axis::pipeline), at.at(Axis::context), at.at(Axis::tensor), commit(),
                   utc_now(), trainer_.context().threads(), world.threads().open_cores_here,
                   std::string(mesh::name_of(parallel.schedule)), parallel.zero, parallel.sequence,
                   trainer_.inspection().groups(), layers, experts.count});
}

/// Collective: measures the rate that utilization is stated against.
void RunRecords::log_run() {
  const train::Config& config = start_.config;
  const plan::MachineRate rate =
      plan::machine_rate(start_.world, trainer_.context(), config.precision.compute);
  utilization_ = Utilization(rate);
  if (!start_.is_first()) return;
  const int ranks = start_.world.size();
  log::info(fmt::format(
      "{}: {:.3f} M parameters, {} on {} rank{} ({}); {}; {} a rank; utilization against "
      "{}, counting of attention what its mask leaves",
      config.run.name, 1e-6 * static_cast<double>(model::parameter_count(config.model)),
      mesh::describe(config.parallel), ranks, ranks == 1 ? "" : "s", setting_.device,
      data_.train_source().description(),
      plan::bytes_text(static_cast<double>(trainer_.inspection().memory_plan().total())),
      rate.describe(ranks)));
}

void RunRecords::begin_step(std::int64_t step, bool traced) {
  if (traced) {
    if (device_trace_) device_trace_->start();
    clock_offset_ = comm::measure_clock_offset(start_.world);
  }
  clock_.begin(step, now_seconds());
}

void RunRecords::note_enqueued(std::int64_t step) {
  record_trace(step);
  const std::int64_t every = start_.config.train.log_norms;
  if (every > 0 && step % every == 0 && start_.is_first()) norms_->append(step, trainer_);
}

void RunRecords::take(const ops::StepResult& result, const StepTimes& times,
                      const KeyShares& documents, const std::optional<Spikes::Spike>& spike) {
  record(result.step, times);
  memory_peak_ = std::max(memory_peak_, trainer_.inspection().memory().peak_bytes());
  if (!start_.is_first()) return;
  if (result.step % start_.config.timing.every == 0) {
    timing_->append_loads(result.step, trainer_.loads(result.step));
  }
  report(result, times.step_seconds, documents, spike);
}

void RunRecords::record(std::int64_t step, const StepTimes& times) {
  flush_row();
  const train::Config& config = start_.config;
  if (step % config.timing.every != 0) return;
  row_.emplace();
  row_->times = times;
  row_->tokens = config.train.global_batch / config.parallel.data * config.model.context;
  row_->memory_peak_bytes = trainer_.inspection().memory().peak_bytes();
  row_->memory_now_bytes = trainer_.inspection().memory().now_bytes();
  row_->groups = trainer_.inspection().traffic(step);
  if (trainer_.context().device() == Device::cuda) account_on_gpu(*row_);
}

/// On a GPU the host sees neither calls that a graph repeats nor waits of a stream: the number of
/// calls is the plan's, and waits for the axes' groups and the world are the times of phases.
void RunRecords::account_on_gpu(io::TimingRow& row) const {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const auto waits = [&](comm::GroupRole role) {
    switch (role) {
      case comm::GroupRole::data:
      case comm::GroupRole::shard:
      case comm::GroupRole::expert_data:
      case comm::GroupRole::expert_shard: return row.times.phase(Phase::reduce_exposed);
      case comm::GroupRole::tensor: return row.times.phase(Phase::tensor_comm);
      case comm::GroupRole::context: return row.times.phase(Phase::context_comm);
      case comm::GroupRole::expert: return row.times.phase(Phase::expert_comm);
      case comm::GroupRole::pipeline:
        return row.times.phase(Phase::pipeline_comm) + row.times.phase(Phase::pipeline_idle);
      case comm::GroupRole::world: return row.times.phase(Phase::wait);
      default: return kUnknown;
    }
  };
  const std::vector<io::GroupInfo> groups = trainer_.inspection().groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const comm::GroupRole role = groups[i].role;
    io::GroupTraffic& traffic = row.groups[i];
    const auto planned = setting_.traffic.find(role);
    if (planned != setting_.traffic.end()) {
      const auto sum = [](const auto& counts) {
        return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      };
      traffic.calls = sum(planned->second.calls);
      traffic.bytes = sum(planned->second.bytes);
    }
    if (groups[i].size == 1) continue;
    traffic.exposed_seconds = waits(role);
    const bool sums = role == comm::GroupRole::data || role == comm::GroupRole::shard;
    if (!sums && !start_.config.timing.groups) traffic.seconds = kUnknown;
  }
}

void RunRecords::record_trace(std::int64_t step) {
  const Recorder& recorder = trainer_.context().recorder();
  if (!recorder.traced()) return;
  if (device_trace_) {
    trainer_.state().wait_all();
    synchronize(trainer_.context());  // the device has done the step, its update too
    record_device(step);
  } else {
    timing_->append_operations(step, recorder.operations());
  }
  timing_->append_traced({step, recorder.step_start(), clock_offset_.seconds,
                          clock_offset_.error_seconds,
                          recorder.lost() + trainer_.inspection().memory_timeline().lost()});
  timing_->append_events(step, recorder.events());
  timing_->append_messages(step, recorder.messages(), trainer_.inspection().groups());
  timing_->append_lives(step, trainer_.inspection().allocation_lives());
  for (const train::MemoryMeter::Change& change : trainer_.inspection().memory().changes()) {
    timing_->append_memory(step, change.seconds - recorder.step_start(), change.bytes,
                           std::string(change.label));
  }
}

void RunRecords::record_device(std::int64_t step) {
  const Recorder& recorder = trainer_.context().recorder();
  const std::vector<DeviceEvent> events = device_trace_->finish();
  timing_->append_operations(
      step, operations_on_device(recorder.operations(), events, recorder.step_start()));
  timing_->append_kernels(step, events, recorder.step_start());
}

namespace {

/// The routers' figures, over samples and layers.
void put_balance(const train::Config& config, const ops::StepResult& result,
                 const std::vector<double>& loads, io::MetricsLine& line) {
  const nn::ExpertsConfig& experts = config.model.experts;
  if (!experts) return;
  const double routed =
      static_cast<double>(config.train.global_batch * experts.layers_of(config.model.layers));
  line.balance = result.balance_sum / routed;
  line.router_entropy = result.router_entropy_sum / routed;
  const double pairs =
      static_cast<double>(config.train.global_batch * config.model.context * experts.active);
  line.load_max = *std::ranges::max_element(loads) * static_cast<double>(experts.count) / pairs;
  if (config.parallel.expert > 1) line.rows_beyond = result.rows_beyond;
  if (experts.z_weight > 0) line.router_z = result.router_z_sum / routed;
}

/// The figures of a text's loss.
io::LossMeaning meaning_of(const train::Config& config, const ops::StepResult& result) {
  switch (config.train.loss) {
    case train::Loss::clipped:
      return io::PolicyMetrics{result.marked / result.tokens,
                               config.train.kl_weight > 0
                                   ? std::optional(result.kl_sum / result.weights)
                                   : std::nullopt};
    case train::Loss::preference: return io::PreferenceMetrics{result.marked / result.weights};
    case train::Loss::distillation: return io::AccuracyMetrics{result.correct / result.tokens};
    default: return io::TextMetrics{std::exp(result.loss()), result.correct / result.tokens};
  }
}

}  // namespace

void RunRecords::report(const ops::StepResult& result, double step_seconds,
                        const KeyShares& documents, const std::optional<Spikes::Spike>& spike) {
  const train::Config& config = start_.config;
  const std::int64_t tokens = config.train.global_batch * config.model.context;
  io::MetricsLine line;
  line.step = result.step;
  line.loss = result.loss();
  line.grad_norm = result.gradient_norm;
  line.lr = result.learning_rate;
  line.tokens = result.step * tokens;
  line.step_seconds = step_seconds;
  line.tokens_per_second = static_cast<double>(tokens) / line.step_seconds;
  put_utilization(documents, line);
  if (config.model.is_of_images()) {
    line.meaning =
        io::ImageMetrics{result.correct / result.tokens, result.correct5 / result.tokens};
    line.images_per_second = static_cast<double>(config.train.global_batch) / step_seconds;
  } else {
    line.meaning = meaning_of(config, result);
  }
  if (config.train.z_loss > 0) line.z_loss = result.z_loss_sum / result.weights;
  put_balance(config, result, trainer_.loads(result.step), line);
  line.wall_seconds =
      earlier_seconds_ + clock_.end(result.step, step_seconds, now_seconds()) - started_;
  line.skipped_steps = result.skipped_steps;
  line.memory_peak_bytes = trainer_.inspection().memory().peak_bytes();
  if (spike) line.spike = spike->verdict.z();
  line.left_out = spike && spike->left_out;
  line.validation = std::exchange(validation_, std::nullopt);
  last_loss_ = line.loss;
  fault::reach("records.metrics");
  metrics_->append(line);
  if (tensorboard_) tensorboard_->append(line.step, io::scalars_of(line));
  progress_->show(line);
}

void RunRecords::put_utilization(const KeyShares& documents, io::MetricsLine& line) {
  const train::Config& config = start_.config;
  const double speed =
      line.tokens_per_second * train::flops_per_token(config, config.model.context, documents);
  if (const auto warning = utilization_.judge(line.step, speed)) {
    finish_line();
    log::warn(*warning);
  }
  line.mfu = utilization_.share(speed);
  line.mfu_full = utilization_.share(flops_full_ / line.step_seconds);
}

void RunRecords::note_validation(const train::Evaluation& evaluation) {
  if (start_.config.model.is_of_images()) {
    validation_ = {evaluation.loss(),
                   io::ImageMetrics{evaluation.accuracy(), evaluation.accuracy5()}};
    return;
  }
  io::TextMetrics text = {evaluation.perplexity(), evaluation.accuracy()};
  if (validation_text_ && !start_.config.data.token_weights)
    text.bits_per_byte = evaluation.bits_per_byte(*validation_text_);
  validation_ = {evaluation.loss(), text};
}

void RunRecords::charge_checkpoint(double seconds) {
  if (!row_) return;
  row_->times.phase_seconds[static_cast<std::size_t>(Phase::checkpoint)] += seconds;
  row_->times.step_seconds += seconds;
}

void RunRecords::flush_row() {
  if (row_) {
    fault::reach("records.timing");
    timing_->append(*row_);
  }
  row_.reset();
}

void RunRecords::finish() {
  finish_line();
  flush_row();
  timing_->flush();
}

}  // namespace hyperslab::run
