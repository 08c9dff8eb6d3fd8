// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/setup.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "hyperslab/core/driver.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {
namespace {

/// FLOPs of a token that adapters spare: the gradients of the base.
double flops_of_frozen(const Config& config) {
  if (!config.adapter) return 0;
  return 2.0 * static_cast<double>(model::matmul_parameter_count(config.model));
}

Error another_model(const std::string& where, const std::string& differences) {
  return Error(ExitCode::checkpoint, where + ": the checkpoint is of another model (" +
                                         differences + "); use the deck it was trained with");
}

}  // namespace

comm::Watchdog watch(comm::World& world, const Config& config) {
  const mesh::Position at(config.parallel, world.rank());
  return {world, {config.run.hang_timeout_seconds, mesh::describe(at)}};
}

std::unique_ptr<mesh::Mesh> make_mesh(comm::World& world, const Config& config, Device device) {
  if (config.run.deterministic) world.set_deterministic();
  return std::make_unique<mesh::Mesh>(world, device, config.parallel, config.groups());
}

std::string require_same_weights(const io::CheckpointMeta& meta, const model::ModelSpec& spec,
                                 const std::string& where) {
  std::string positions;
  std::string others;
  for (const auto& [was, is] : model::differing_choices(meta.model, model::identity(spec))) {
    std::string& differences = was.starts_with("rope_") ? positions : others;
    differences += (differences.empty() ? "" : ", ") + was + " here " + is;
  }
  if (others.empty()) return positions;
  throw another_model(where, others);
}

void require_same_model(const io::CheckpointMeta& meta, const model::ModelSpec& spec,
                        const std::string& where) {
  const std::string positions = require_same_weights(meta, spec, where);
  if (!positions.empty()) throw another_model(where, positions);
}

TrainerOptions trainer_options(const Config& config, int local_rank, bool training) {
  TrainerOptions options;
  options.training = training;
  const DeviceChoice choice = config.run.device;
  const int gpus = choice == DeviceChoice::cpu ? 0 : cuda_device_count();
  if (gpus > 0) {
    use_cuda_device(local_rank % gpus);
    options.device = Device::cuda;
    options.machine = machine_of(device_name());
  } else if (choice != DeviceChoice::cpu) {
    const std::string problem = cuda_driver_problem();
    if (!problem.empty()) throw Error(ExitCode::device, problem + ", or set run.device: cpu");
    if (choice == DeviceChoice::cuda) {
      throw Error(ExitCode::device,
                  "run.device is cuda, but this process sees no GPU; see nvidia-smi and "
                  "CUDA_VISIBLE_DEVICES, or set run.device: cpu");
    }
  }
  options.compute = storage_of(config.precision.compute);
  if (training && config.samples_text()) options.generation = model::Generation::cached;
  return options;
}

void report_threads(const comm::World& world) {
  if (world.rank() != 0) return;
  log::info(comm::describe(world.threads()));
  const std::string warning = comm::warning_of(world.threads());
  if (!warning.empty()) log::warn(warning);
  const std::string busy = comm::busy_line(world.threads());
  if (!busy.empty()) log::info(busy);
}

double flops_per_token(const Config& config, Dim T, bool causal) {
  return model::flops_per_token(config.model, T, causal) - flops_of_frozen(config);
}

double flops_per_token(const Config& config, Dim T, const KeyShares& documents) {
  return model::flops_per_token(config.model, T, documents) - flops_of_frozen(config);
}

std::int64_t total_steps(const Config& config, std::int64_t samples_per_epoch) {
  if (config.train.steps > 0) return config.train.steps;
  const std::int64_t samples = config.train.epochs * samples_per_epoch;
  const std::int64_t steps = samples / config.train.global_batch;
  if (steps == 0) {
    throw Error(ExitCode::data, "the training data hold " + std::to_string(samples_per_epoch) +
                                    " samples, fewer than one train.global_batch of " +
                                    std::to_string(config.train.global_batch) +
                                    "; give more data or a smaller batch");
  }
  return steps;
}

std::int64_t validation_samples(const Config& config, std::int64_t available) {
  const std::int64_t batches = config.train.validate_batches;
  const std::int64_t batch = config.train.global_batch;
  return batches > 0 && batches <= available / batch ? batches * batch : available;
}

}  // namespace hyperslab::train
