// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/initial.hpp"

#include <fmt/format.h>

#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {
namespace {

/// Rank 0 chooses the step, so that all ranks take the same one.
std::string chosen_folder(comm::World& world, const std::string& initial) {
  std::string folder;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    try {
      folder = io::CheckpointReader(initial).folder();
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("checkpoint.initial: {}; give a step's folder or a directory of "
                              "them, or null to start from random weights",
                              error.what()));
    }
  });
  return world.broadcast(folder);
}

}  // namespace

void start_from_initial(comm::World& world, const Config& config, Trainer& trainer) {
  if (config.checkpoint.initial.empty()) return;
  const std::string folder = chosen_folder(world, config.checkpoint.initial);
  comm::agree(world, [&] {
    const Pause pause(world.activity());
    const io::CheckpointReader reader(folder);
    trainer.load_parameters(reader);  // which names every tensor of another shape
    require_same_model(reader.meta(), config.model, reader.folder());
    if (world.rank() == 0) {
      log::info(fmt::format("starts from the weights of {} (step {}, {})", reader.folder(),
                            reader.meta().step, reader.meta().layout));
    }
  });
  trainer.share_values();
}

}  // namespace hyperslab::train
