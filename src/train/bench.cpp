// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/bench.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/train/run.hpp"

namespace hyperslab::train {
namespace {

/// Share of 6 N (and of attention) that a mode computes: forward is one third of a step.
double work_fraction(BenchMode mode) { return mode == BenchMode::forward ? 1.0 / 3.0 : 1.0; }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

void summarize(BenchResult& result) {
  const std::vector<double>& all = result.step_seconds;
  const std::size_t n = all.size();
  result.mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(n);
  result.median = median(all);
  double squares = 0;
  for (const double x : all) squares += (x - result.mean) * (x - result.mean);
  result.standard_deviation = n > 1 ? std::sqrt(squares / static_cast<double>(n - 1)) : 0.0;
}

/// The trainer of a bench, with one microbatch of generated tokens in its slot.
class Bench {
 public:
  Bench(comm::World& world, const Config& config, const BenchOptions& options);
  BenchResult run();

 private:
  void set_up();
  [[nodiscard]] bool on_gpu() const { return trainer_options_.device == Device::cuda; }
  StepTimes one_step(std::int64_t step);
  void add_components(BenchResult& result) const;

  comm::World& world_;
  Config config_;
  BenchOptions options_;
  TrainerOptions trainer_options_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<Trainer> trainer_;
  Plan plan_;
  std::array<double, kComponents> component_seconds_{};
};

Bench::Bench(comm::World& world, const Config& config, const BenchOptions& options)
    : world_(world), config_(config), options_(options) {}

void Bench::set_up() {
  agree(world_, [&] {
    const bool training = options_.mode != BenchMode::forward;
    trainer_options_ = trainer_options(config_, world_.local_rank(), training);
    trainer_options_.graphs = !options_.components;
    trainer_options_.time_components = options_.components;
  });
  mesh_ = std::make_unique<mesh::Mesh>(world_, trainer_options_.device, config_.parallel,
                                       config_.groups());
  plan_ = make_plan(config_, trainer_options_, world_.rank());
  trainer_ = std::make_unique<Trainer>(config_, *mesh_, trainer_options_, &plan_.memory);
  trainer_->initialize();
  const auto tokens = io::open_tokens({"synthetic"}, config_.data.dtype, config_.model.vocabulary,
                                      config_.run.seed);
  const io::Samples samples(*tokens, io::Sampling::blocks, trainer_->sequence(), config_.run.seed);
  io::Loader loader(samples, config_.train.global_batch, mesh_->at().data, config_.parallel.data);
  trainer_->fill_slots(loader, 1);
}

StepTimes Bench::one_step(std::int64_t step) {
  Trainer::Order order;
  order.step = step;
  order.learning_rate = config_.optimizer.lr;
  switch (options_.mode) {
    case BenchMode::forward: trainer_->forward(order); break;
    case BenchMode::forward_backward: trainer_->forward_backward(order); break;
    case BenchMode::step: trainer_->step(order, nullptr); break;
  }
  return trainer_->times(step);
}

BenchResult Bench::run() {
  world_.barrier();
  const double start = now_seconds();
  set_up();
  BenchResult result;
  MatmulProbe probe(trainer_->context(), 2048);
  std::vector<double> probe_seconds;
  const int warmup = options_.cold ? 0 : options_.warmup;
  for (int i = 0; i < warmup + options_.steps; ++i) {
    world_.barrier();
    const double step_start = options_.cold && i == 0 ? start : now_seconds();
    const StepTimes times = one_step(i + 1);
    const double seconds = on_gpu() ? times.step_seconds : now_seconds() - step_start;
    probe_seconds.push_back(probe.run());
    if (i < warmup) continue;
    result.step_seconds.push_back(
        1e-9 * static_cast<double>(world_.max(static_cast<std::int64_t>(seconds * 1e9))));
    for (std::size_t c = 0; c < kComponents; ++c) {
      component_seconds_[c] += times.component_seconds[c] / options_.steps;
    }
  }
  summarize(result);
  result.tokens = static_cast<double>(config_.train.global_batch * trainer_->sequence());
  const double work = work_fraction(options_.mode) * result.tokens;
  result.model_flops = work * model::flops_per_token(config_.model, trainer_->sequence(), true);
  result.model_flops_full =
      work * model::flops_per_token(config_.model, trainer_->sequence(), false);
  result.matmul_rate = on_gpu()
                           ? world_.size() * peak_flops(device_name(), config_.precision.compute)
                           : world_.sum(probe.flops() / median(probe_seconds));
  result.memory_peak_bytes = world_.max(static_cast<std::int64_t>(plan_.memory.total()));
  add_components(result);
  return result;
}

void Bench::add_components(BenchResult& result) const {
  double seconds = 0;
  for (const double part : component_seconds_) seconds += part;
  const auto flops_of = [&](Component component) {
    const bool runs = component != Component::optimizer || options_.mode == BenchMode::step;
    return runs ? plan_.ledger.component(name_of(component)).flops : 0.0;
  };
  double flops = 0;
  for (int c = 0; c < kComponents; ++c) flops += flops_of(static_cast<Component>(c));
  for (int c = 0; c < kComponents; ++c) {
    BenchComponent row;
    row.name = name_of(static_cast<Component>(c));
    row.seconds = component_seconds_[static_cast<std::size_t>(c)];
    row.flops = flops_of(static_cast<Component>(c));
    row.share = row.seconds / seconds;
    row.expected_share = row.flops / flops;
    result.components.push_back(row);
  }
}

}  // namespace

BenchResult run_bench(comm::World& world, const Config& config, const BenchOptions& options) {
  return Bench(world, config, options).run();
}

}  // namespace hyperslab::train
