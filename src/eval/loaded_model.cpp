// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/eval/loaded_model.hpp"

#include "hyperslab/core/activity.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/resolution.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::eval {

std::int64_t LoadedModel::load(const std::string& checkpoint) {
  if (!trainer_) make_trainer(checkpoint);
  std::int64_t step = 0;
  comm::agree(parts_.world, [&] {
    const Pause pause(parts_.world.activity(), "loading a checkpoint");
    io::CheckpointReader reader(checkpoint);
    if (parts_.averages) reader.use_averages();
    (void)train::fit_resolution(reader, parts_.config.model);
    step = reader.meta().step;
    train::require_loadable(reader, parts_.config, *trainer_);
    trainer_->state().load(reader);  // which names every tensor of another shape
    train::require_same_model(reader.meta(), parts_.config.model, reader.folder());
  });
  trainer_->state().share_values();
  return step;
}

void LoadedModel::make_trainer(const std::string& checkpoint) {
  plan::Plan plan;
  comm::agree(parts_.world,
              [&] { plan = plan::make_plan(parts_.config, parts_.options, parts_.world.rank()); });
  plan::require_host_memory(parts_.world, parts_.config, parts_.options, plan.memory,
                            parts_.is_legal);
  std::int64_t base_step = 0;
  comm::agree(parts_.world, [&] {
    trainer_ = plan::make_trainer(parts_.config, parts_.mesh, parts_.options, plan.memory,
                                  parts_.is_legal);
    trainer_->state().initialize();
    base_step = io::CheckpointReader(checkpoint).meta().base_step;
  });
  train::load_base(parts_.world, parts_.config, *trainer_, base_step);
}

double slowest_seconds_since(comm::World& world, std::chrono::steady_clock::time_point start) {
  const auto mine = std::chrono::steady_clock::now() - start;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(mine);
  return 1e-9 * static_cast<double>(world.max(nanoseconds.count()));
}

}  // namespace hyperslab::eval
