// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/plan.hpp"

namespace hyperslab::plan {

Plan make_plan(const train::Config& config, const train::TrainerOptions& options, int world_rank) {
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, world_rank, config.groups());
  const auto owned = train::Trainer::measure(config, mesh, options);
  train::Trainer& trainer = *owned;
  if (options.cache) {
    const View tokens(nullptr, DType::i32, Device::meta,
                      {trainer.microbatch(), trainer.sequence()});
    const View logits(nullptr, options.compute, Device::meta,
                      {trainer.microbatch(), trainer.stage().logits_columns()});
    trainer.stage().decode(trainer.context(), tokens, 0, logits);
  }
  if (options.training) {
    trainer.step({});
  } else if (!options.cache) {
    trainer.forward({});
  }
  Plan plan;
  plan.memory = trainer.memory_plan();
  plan.ledger = trainer.context().ledger();
  for (const comm::Communicator* group : mesh.groups())
    plan.traffic[group->role()] = group->traffic();
  for (const param::Param& param : trainer.stage().params().params()) {
    plan.parameters.emplace_back(param.name, param.part.count);
  }
  for (const Arena* arena : trainer.arenas().all()) {
    for (const Allocation& allocation : arena->allocations()) {
      plan.allocations.emplace_back(arena->name(), allocation);
    }
  }
  return plan;
}

}  // namespace hyperslab::plan
