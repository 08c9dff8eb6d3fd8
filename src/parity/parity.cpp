// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/parity/parity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/optim/schedule.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::parity {
namespace {

constexpr double kKindShare = 1e-3;

void put(std::string& out, const void* from, std::size_t bytes) {
  out.append(static_cast<const char*>(from), bytes);
}

/// A slab as bytes: name, rank, shape, offset, count, elements.
void put(std::string& out, const io::Slab& slab) {
  const auto length = static_cast<std::int64_t>(slab.tensor.size());
  const std::int64_t rank = slab.global_shape.rank();
  put(out, &length, sizeof length);
  out += slab.tensor;
  put(out, &rank, sizeof rank);
  for (const Shape* shape : {&slab.global_shape, &slab.part.offset, &slab.part.count}) {
    for (const Dim dim : shape->dims()) put(out, &dim, sizeof dim);
  }
  put(out, slab.data.raw(), slab.data.bytes());
}

/// Reads the values that put() wrote.
class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}
  [[nodiscard]] bool at_end() const { return at_ == end_; }
  /// Copies the next slab into `all`, counting every element.
  void next(GlobalTensors& all, std::map<std::string, std::vector<std::uint8_t>>& hits) {
    const auto length = static_cast<std::size_t>(number());
    const std::string name(at_, length);
    at_ += length;
    const auto rank = static_cast<std::size_t>(number());
    const Shape global_shape = shape(rank);
    const Shape offset = shape(rank);
    const Hyperslab part = {offset, shape(rank)};
    std::vector<float>& tensor = all[name];
    tensor.resize(static_cast<std::size_t>(global_shape.numel()));
    std::vector<std::uint8_t>& hit = hits[name];
    hit.resize(tensor.size());
    const HyperslabRuns runs(part, Hyperslab::whole(global_shape), part);
    const std::size_t bytes = static_cast<std::size_t>(runs.length()) * sizeof(float);
    for (std::int64_t i = 0; i < runs.size(); ++i, at_ += bytes) {
      const std::int64_t first = runs[i].target;
      std::memcpy(tensor.data() + first, at_, bytes);
      for (Dim k = 0; k < runs.length(); ++k) ++hit[static_cast<std::size_t>(first + k)];
    }
  }

 private:
  std::int64_t number() {
    std::int64_t value = 0;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Shape shape(std::size_t rank) {
    std::vector<Dim> dims(rank);
    for (Dim& dim : dims) dim = number();
    return Shape(std::span<const Dim>(dims));
  }
  const char* at_;
  const char* end_;
};

/// The deck's training tokens and a trainer on them, for as long as a trace takes.
class Tracer {
 public:
  Tracer(comm::World& world, train::Config config, const plan::IsLegal& is_legal)
      : world_(world), config_(std::move(config)) {
    train::TrainerOptions options;
    comm::agree(world_, [&] {
      options = train::trainer_options(config_, world_.local_rank(), true);
      options.activity = &world_.activity();
      data_ = train::open_data(config_);
    });
    mesh_ = train::make_mesh(world_, config_, options.device);
    model::MemoryPlan memory;
    comm::agree(world_, [&] { memory = plan::make_plan(config_, options, world_.rank()).memory; });
    plan::require_host_memory(world_, config_, options, memory, is_legal);
    comm::agree(world_, [&] {
      loader_ = std::make_unique<io::Loader>(*data_.train_samples, config_.train.global_batch,
                                             mesh_->at(mesh::kSamples), config_.parallel.data);
      trainer_ = plan::make_trainer(config_, *mesh_, options, memory, is_legal);
      trainer_->state().initialize();
    });
    trainer_->state().share_initial_values();
    train::start_from_initial(world_, config_, *trainer_);
  }

  LayoutTrace run(std::int64_t steps) {
    const std::int64_t total = train::total_steps(config_, data_.train_samples->size());
    LayoutTrace trace;
    for (std::int64_t step = 1; step <= steps; ++step) {
      train::Trainer::StepArgs args;
      args.step = step;
      args.learning_rate =
          optim::learning_rate(config_.schedule, config_.optimizer.lr, step, total);
      const double loss_scale = step == 1 ? trainer_->state().step_state().loss_scale : 1;
      trainer_->step(args, *loader_);
      const ops::StepResult& result = trainer_->result(step);
      trace.losses.push_back(result.loss());
      if (step > 1) continue;
      trace.gradients = gather_tensors(world_, trainer_->state().gradient_slabs());
      for (auto& [name, gradient] : trace.gradients) {
        for (float& value : gradient) value = static_cast<float>(value / loss_scale);
      }
    }
    return trace;
  }

 private:
  comm::World& world_;
  train::Config config_;
  train::DeckData data_;
  std::unique_ptr<io::Loader> loader_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<train::Trainer> trainer_;
};

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

/// "weight" or "bias".
std::string kind_of(const std::string& tensor) { return tensor.substr(tensor.rfind('.') + 1); }

}  // namespace

GlobalTensors gather_tensors(comm::World& world, const std::vector<io::Slab>& slabs) {
  std::string mine;
  for (const io::Slab& slab : slabs) put(mine, slab);
  GlobalTensors all;
  std::map<std::string, std::vector<std::uint8_t>> hits;
  for (const std::string& bytes : world.gather(mine)) {
    for (Unpacker unpacker(bytes); !unpacker.at_end();) unpacker.next(all, hits);
  }
  for (const auto& [name, hit] : hits) {
    if (std::ranges::any_of(hit, [](std::uint8_t times) { return times != 1; })) {
      throw Error(ExitCode::internal, "the slabs of " + name + " do not cover it once");
    }
  }
  return all;
}

LayoutTrace trace_layout(comm::World& world, const train::Config& config, std::int64_t steps,
                         const plan::IsLegal& is_legal) {
  const int ranks = config.parallel.ranks();
  if (ranks > world.size()) {
    throw Error(ExitCode::usage,
                fmt::format("the layout {} needs {} ranks, {} {} started; start {} (mpirun -np {} "
                            "hyperslab ...)",
                            mesh::describe(config.parallel), ranks, world.size(),
                            world.size() == 1 ? "was" : "were", ranks, ranks))
        .on_all_ranks();
  }
  const std::unique_ptr<comm::World> part = world.part(world.rank() < ranks ? 0 : -1);
  LayoutTrace trace;
  std::optional<Error> failed;  // alike on all ranks of the part, which the others do not know yet
  try {
    if (part) trace = Tracer(*part, config, is_legal).run(steps);
  } catch (const Error& error) {
    if (!error.is_on_all_ranks()) throw;
    failed = error;
  }
  comm::agree(world, [&] {
    if (failed) throw Error(*failed);
  });
  return trace;
}

ParityTolerance parity_tolerance(const train::PrecisionConfig& precision) {
  if (precision.fp8()) return {0.2, 5e-3, 2e-2};
  if (precision.compute == Precision::fp32) return {};
  if (precision.compute == Precision::tf32) return {5e-3, 1e-3, 5e-3};
  return {5e-2, 5e-3, 2e-2};
}

ParityReport compare(const LayoutTrace& a, const LayoutTrace& b, const ParityTolerance& tolerance) {
  std::map<std::string, double> largest_of_kind;
  for (const auto& [name, values] : a.gradients) {
    double& most = largest_of_kind[kind_of(name)];
    most = std::max(most, largest(values));
  }
  ParityReport report;
  report.agrees = a.gradients.size() == b.gradients.size() && !a.gradients.empty() &&
                  a.losses.size() == b.losses.size();
  for (const auto& [name, expected] : a.gradients) {
    const auto found = b.gradients.find(name);
    if (found == b.gradients.end() || found->second.size() != expected.size()) {
      report.rows.push_back({name, HUGE_VAL});
      continue;
    }
    double difference = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double apart = std::abs(static_cast<double>(expected[i]) - found->second[i]);
      difference =
          std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(difference, apart);
    }
    const double scale = std::max(largest(expected), kKindShare * largest_of_kind[kind_of(name)]);
    report.rows.push_back({name, difference == 0 ? 0 : difference / scale});
  }
  std::ranges::stable_sort(report.rows, std::greater(), &ParityReport::Row::difference);
  for (const ParityReport::Row& row : report.rows) {
    report.agrees = report.agrees && row.difference <= tolerance.gradient;
  }
  for (std::size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    const double difference = std::abs(a.losses[i] - b.losses[i]) / a.losses[i];
    const bool early = static_cast<std::int64_t>(i) < kEarlySteps;
    report.agrees = report.agrees && difference <= (early ? tolerance.loss : tolerance.late_loss);
    if (difference <= report.loss_difference) continue;
    report.loss_difference = difference;
    report.worst_step = static_cast<std::int64_t>(i) + 1;
  }
  return report;
}

}  // namespace hyperslab::parity
