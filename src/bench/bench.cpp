// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/bench/bench.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "bench_rig.hpp"
#include "hyperslab/core/nvtx.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/plan/machine_rate.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::bench {
namespace {

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

void summarize(BenchResult& result) {
  const StepFigures all = figures_of(result.step_seconds);
  result.mean = all.mean;
  result.median = all.median;
  result.standard_deviation = all.standard_deviation;
}

class Bench {
 public:
  Bench(comm::World& world, train::Config config, BenchOptions options)
      : world_(world), config_(std::move(config)), options_(std::move(options)) {}
  BenchResult run();

 private:
  [[nodiscard]] int first() const { return options_.cold ? 1 : options_.warmup + 1; }
  [[nodiscard]] int last() const { return first() + options_.steps - 1; }
  /// The forward passes of a microbatch in all measured steps.
  [[nodiscard]] int forwards() const {
    return options_.steps * static_cast<int>(config_.microbatches());
  }
  void run_on_cpu();
  void run_on_gpu();
  void begin_measuring();
  void end_measuring();
  void take(int step);
  void add(int step, double seconds, const StepTimes& times);
  void watch_kernels();
  void trace_memory();
  void fill(BenchResult& result) const;

  comm::World& world_;
  train::Config config_;
  BenchOptions options_;
  double start_ = 0;  ///< time at which the measurement began
  std::unique_ptr<BenchRig> rig_;
  std::optional<Profiler> profiler_;
  std::optional<OpProfiler> op_profiler_;  ///< on the CPU
  std::optional<nvtx::Range> range_;
  double ended_ = 0;  ///< when the newest step was seen to have ended
  std::vector<double> step_seconds_;
  std::vector<double> host_seconds_;
  std::vector<double> device_seconds_;  ///< empty on the CPU
  std::vector<double> event_seconds_;   ///< empty on the CPU
  plan::MachineRate rate_;
  std::string no_profiler_;
  BenchKernels kernels_;
  std::array<double, kPhases> phase_seconds_{};
  std::array<double, kMaxComponents> component_seconds_{};
};

void Bench::add(int step, double seconds, const StepTimes& times) {
  if (step < first()) return;
  step_seconds_.push_back(seconds);
  for (std::size_t i = 0; i < kPhases; ++i) {
    phase_seconds_[i] += times.phase_seconds[i] / options_.steps;
  }
  for (std::size_t i = 0; i < kMaxComponents; ++i) {
    component_seconds_[i] += times.component_seconds[i] / options_.steps;
  }
}

void Bench::run_on_cpu() {
  const bool in_bf16 = config_.precision.compute == Precision::bf16 && ops::cpu_multiplies_bf16();
  plan::MatmulProbe probe(rig_->trainer().context(), 2048, in_bf16 ? DType::bf16 : DType::f32);
  std::vector<double> probe_seconds;
  for (int step = 1; step <= last(); ++step) {
    world_.barrier();
    if (step >= first() && op_profiler_) op_profiler_->start();
    const double begin = options_.cold && step == 1 ? start_ : now_seconds();
    rig_->run(options_.mode, step);
    const StepTimes times = rig_->trainer().inspection().times(step);
    const double seconds = now_seconds() - begin;
    if (step >= first()) host_seconds_.push_back(seconds);
    if (op_profiler_) op_profiler_->stop();  // the probe is no op of the step
    probe_seconds.push_back(probe.run());
    add(step, seconds, times);
  }
  if (op_profiler_) {
    kernels_ = bench::summarize(op_profiler_->ops(), forwards(), ops::class_of_op);
  }
  rate_.flops = world_.sum(probe.flops() / median(probe_seconds));
  rate_.name = "the measured matrix rate";
  rate_.source = std::string(in_bf16 ? "bf16" : "fp32") +
                 ", 2048 x 2048 x 2048, median of one after every step";
}

/// Without graphs the measured steps begin on an idle device: profilers look at them alone, and the
/// host, which is slower, sees their time and none of the warm-up's.
void Bench::begin_measuring() {
  if (!options_.graphs()) {
    synchronize(rig_->trainer().context());
    world_.barrier();
    rig_->trainer().inspection().restart_clock();
    ended_ = now_seconds();
  }
  if (profiler_) profiler_->start();
  if (options_.ranges) start_capture_range();
  range_.emplace(nvtx::enabled(), "measured steps");
}

void Bench::end_measuring() {
  synchronize(rig_->trainer().context());
  range_.reset();
  if (options_.ranges) stop_capture_range();
  if (!profiler_) return;
  profiler_->stop();
  kernels_ = bench::summarize(profiler_->kernels(), forwards());
  kernels_.communication = profiler_->communication();
}

/// Waits until a step has ended.
void Bench::take(int step) {
  const StepTimes times = rig_->trainer().inspection().times(step);
  const double now = now_seconds();
  const bool holds_setup = options_.cold && step == 1;
  const double host = now - (holds_setup ? start_ : ended_);
  ended_ = now;
  if (step < first()) return;
  host_seconds_.push_back(host);
  device_seconds_.push_back(times.step_seconds);
  add(step, holds_setup ? host : times.step_seconds, times);
}

void Bench::run_on_gpu() {
  Context& ctx = rig_->trainer().context();
  EventTimer events(ctx, options_.steps);
  range_.emplace(nvtx::enabled(), "warm-up");
  world_.barrier();
  rig_->trainer().inspection().restart_clock();
  ended_ = now_seconds();
  int taken = 0;
  for (int step = 1; step <= last(); ++step) {
    if (step == first()) {
      if (!options_.graphs()) {
        while (taken < step - 1) take(++taken);
      }
      range_.reset();
      begin_measuring();
    }
    if (step >= first()) events.begin();
    rig_->run(options_.mode, step);
    if (step >= first()) events.end();
    // One step waits on the device while the host looks at the one before.
    while (taken < step - 1) take(++taken);
  }
  take(last());
  end_measuring();
  event_seconds_ = events.seconds();
  rate_ = plan::machine_rate(world_, ctx, config_.precision.compute);
}

void Bench::fill(BenchResult& result) const {
  const train::Trainer& trainer = rig_->trainer();
  result.tokens = static_cast<double>(config_.train.global_batch * trainer.sequence());
  const auto flops = [&](const auto& attention) {
    const Dim T = trainer.sequence();
    return options_.mode == BenchMode::forward
               ? model::flops_per_token(config_.model, T, attention) / 3
               : train::flops_per_token(config_, T, attention);
  };
  result.model_flops = result.tokens * flops(rig_->key_shares());
  result.model_flops_full = result.tokens * flops(false);
  result.matmul_rate = rate_.flops;
  result.rate_is_measured = rate_.is_measured;
  result.rate_name = rate_.name;
  result.rate_source = rate_.source;
  result.graphs = rig_->on_gpu() && options_.graphs();
  result.phase_seconds = phase_seconds_;
  result.clocks.host = mean(host_seconds_);
  if (rig_->on_gpu()) {
    result.clocks.device = mean(device_seconds_);
    result.clocks.events = mean(event_seconds_);
  }
  result.kernels = kernels_;
  result.kernels.unavailable = no_profiler_;
  if (profiler_ && !kernels_.rows.empty()) {
    result.clocks.cupti_kernels = kernels_.seconds() / options_.steps;
  }
  result.components = components_of(component_seconds_, rig_->plan().ledger,
                                    {config_, rig_->options(), options_.mode});
  result.dtypes = dtypes_of(trainer, config_);
  result.memory = rig_->memory();
}

void Bench::watch_kernels() {
  Recorder& recorder = rig_->trainer().context().recorder();
  comm::agree(world_, [&] {
    if (!options_.communication || rig_->on_gpu()) return;
    throw Error(ExitCode::device,
                "--communication watches a GPU, and this run is on the CPU; it needs a GPU and "
                "run.device: cuda");
  });
  if (!rig_->on_gpu()) {
    op_profiler_.emplace(recorder);
    return;
  }
  no_profiler_ = Profiler::unavailable();
  comm::agree(world_, [&] {
    if (!no_profiler_.empty()) return;
    profiler_.emplace(recorder, Profiler::Watch::calls_and_kernels, ops::is_communication);
  });
}

/// One more step, whose marks report when memory is in use.
void Bench::trace_memory() {
  op_profiler_.reset();
  world_.barrier();
  rig_->trace(options_.mode, last() + 1);
  (void)rig_->trainer().inspection().times(last() + 1);
}

BenchResult Bench::run() {
  world_.barrier();
  start_ = now_seconds();
  rig_ = std::make_unique<BenchRig>(world_, config_, options_);
  if (options_.kernels || options_.communication) watch_kernels();
  rig_->on_gpu() ? run_on_gpu() : run_on_cpu();
  if (options_.memory_timeline) trace_memory();
  BenchResult result;
  for (const double seconds : step_seconds_) {
    result.step_seconds.push_back(
        1e-9 * static_cast<double>(world_.max(static_cast<std::int64_t>(seconds * 1e9))));
  }
  summarize(result);
  fill(result);
  result.memory_peak_bytes = world_.max(static_cast<std::int64_t>(rig_->plan().memory.total()));
  return result;
}

}  // namespace

StepFigures figures_of(std::span<const double> seconds) {
  const std::size_t n = seconds.size();
  StepFigures figures;
  figures.mean = mean(seconds);
  figures.median = median({seconds.begin(), seconds.end()});
  double squares = 0;
  for (const double x : seconds) squares += (x - figures.mean) * (x - figures.mean);
  if (n > 1) figures.standard_deviation = std::sqrt(squares / static_cast<double>(n - 1));
  return figures;
}

BenchResult run_bench(comm::World& world, const train::Config& config,
                      const BenchOptions& options) {
  return Bench(world, config, options).run();
}

}  // namespace hyperslab::bench
