// SPDX-License-Identifier: Apache-2.0
#include "bench_rig.hpp"

#include <utility>

#include "hyperslab/core/nvtx.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::bench {
namespace {

// cuBLASLt's own, beside the planned one; see ops::cuda::Backend.
constexpr std::size_t kLibraryBytes = std::size_t{32} << 20;

std::size_t bytes_in_use(Device device) {
  if (device != Device::cuda) return 0;
  const DeviceMemory memory = device_memory(device);
  return memory.total - memory.free;
}

/// Generated tokens; if tokens attend to their documents alone, the training files of the deck, as
/// the lengths of documents decide attention's cost.
train::DeckData bench_data(const train::Config& config, Dim T) {
  if (config.data.documents == io::Documents::joined) return train::generated_data(config, T);
  train::Config training = config;
  training.data.validation.clear();
  return train::open_data(training, io::DataPart::both);
}

}  // namespace

BenchRig::BenchRig(comm::World& world, train::Config config, const BenchOptions& options)
    : config_(std::move(config)) {
  if (options.ranges) nvtx::enable();
  comm::agree(world, [&] {
    trainer_options_ =
        train::trainer_options(config_, world.local_rank(), options.mode != BenchMode::forward);
    trainer_options_.graphs = options.graphs();
    trainer_options_.overlap_update = options.graphs();  // else kernels are looked at one by one
    trainer_options_.time_components = options.components;
    trainer_options_.activity = &world.activity();
    plan_ = plan::make_plan(config_, trainer_options_, world.rank());
  });
  plan::require_host_memory(world, config_, trainer_options_, plan_.memory, options.is_legal);
  if (config_.run.deterministic) world.set_deterministic();
  mesh_ = train::make_mesh(world, config_, trainer_options_.device);
  comm::agree(world, [&] {
    bytes_before_ = bytes_in_use(trainer_options_.device);
    trainer_ =
        plan::make_trainer(config_, *mesh_, trainer_options_, plan_.memory, options.is_legal);
    trainer_->state().initialize();
    data_ = bench_data(config_, trainer_->sequence());
    loader_ = std::make_unique<io::Loader>(*data_.train_samples, config_.train.global_batch,
                                           mesh_->at(mesh::kSamples), config_.parallel.data);
    loader_->count_keys(config_.model.scores.window);
    trainer_->fill_slots(*loader_, 1);
  });
  trainer_->state().share_initial_values();
}

train::Trainer::StepArgs BenchRig::arguments(std::int64_t step) const {
  train::Trainer::StepArgs args;
  args.step = step;
  args.learning_rate = config_.optimizer.lr;
  return args;
}

void BenchRig::run(BenchMode mode, std::int64_t step, bool loads) {
  run(mode, arguments(step), loads);
}

void BenchRig::trace(BenchMode mode, std::int64_t step) {
  train::Trainer::StepArgs args = arguments(step);
  args.traced = true;
  args.waits_at_marks = true;
  run(mode, args, false);
  has_timeline_ = true;
}

void BenchRig::run(BenchMode mode, const train::Trainer::StepArgs& args, bool loads) {
  switch (mode) {
    case BenchMode::forward: return trainer_->forward(args);
    case BenchMode::forward_backward: return trainer_->forward_backward(args);
    case BenchMode::step: return loads ? trainer_->step(args, *loader_) : trainer_->step(args);
  }
}

BenchMemory BenchRig::memory() const {
  BenchMemory memory;
  memory.allocations = plan_.allocations;
  memory.plan = plan_.memory;
  memory.residual_stream_bytes = trainer_->stage().stream_bytes();
  if (has_timeline_) {
    memory.lives = trainer_->inspection().allocation_lives();
    memory.spans =
        trainer_->inspection().memory_timeline().spans(trainer_->context().recorder().step_start());
  }
  if (!on_gpu()) return memory;
  memory.measured = true;
  memory.before_bytes = bytes_before_;
  memory.library_bytes = kLibraryBytes;
  memory.device_bytes = bytes_in_use(Device::cuda);
  return memory;
}

}  // namespace hyperslab::bench
