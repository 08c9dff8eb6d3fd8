// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/plan.hpp"

#include <algorithm>

namespace hyperslab::plan {
namespace {

/// Enqueues the pass that `options` ask for.
void run(train::Trainer& trainer, const train::TrainerOptions& options, OperationList* list) {
  trainer.context().stream().record_to(list);
  if (options.training) {
    trainer.step({});
  } else if (options.generation != model::Generation::cached) {
    trainer.forward({});
  }
  trainer.context().stream().record_to(nullptr);
}

/// Samples of some new tokens each, on the cache of a trainer, with logits of the last ones or of
/// all.
void decode(train::Trainer& trainer, DType compute, Dim B, Dim T, bool all = false) {
  const auto view = [](DType dtype, const Shape& shape) {
    return View(nullptr, dtype, Device::meta, shape);
  };
  const model::CacheSize& cache = trainer.stage().options().cache_size;
  const View tokens = view(DType::i32, {B, T});
  const View logits = view(compute, {all ? B * T : B, trainer.stage().results().logits_columns});
  if (cache.rows == 1) return trainer.stage().decode(trainer.context(), tokens, 0, logits);
  const View pages = view(DType::i32, {B, cache.pages_of_text()});
  trainer.stage().decode(trainer.context(), {tokens, 0, pages, T - 1}, logits);
}

/// Reads the largest prompt, then a token of every text, and with guesses.
void decode(train::Trainer& trainer, const train::TrainerOptions& options) {
  const model::CacheSize& cache = trainer.stage().options().cache_size;
  decode(trainer, options.compute, 1, std::min(trainer.slot_tokens(), cache.tokens));
  decode(trainer, options.compute, cache.rows, 1);
  if (options.draft_tokens == 0) return;
  decode(trainer, options.compute, cache.rows, std::min(1 + options.draft_tokens, cache.tokens),
         true);
}

}  // namespace

Plan make_plan(const train::Config& config, const train::TrainerOptions& options, int world_rank,
               int listed_steps) {
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, world_rank, config.groups());
  const auto owned = train::Trainer::measure(config, mesh, options);
  train::Trainer& trainer = *owned;
  const bool decodes = options.generation == model::Generation::cached;
  if (decodes && !options.training) decode(trainer, options);
  Plan plan;
  plan.operations.resize(static_cast<std::size_t>(listed_steps));
  run(trainer, options, listed_steps > 0 ? plan.operations.data() : nullptr);
  plan.peak_in_use = trainer.inspection().memory().peak_bytes();
  plan.checkpoint_bytes = trainer.state().checkpoint_bytes();
  plan.ledger = trainer.context().ledger();
  if (options.training) plan.movements = trainer.inspection().movements();
  for (int unit = 0; unit < trainer.stage().units(); ++unit) {
    plan.units.emplace_back(trainer.stage().name(unit));
  }
  for (const comm::Communicator* group : mesh.groups())
    plan.traffic[group->role()] = group->traffic();
  for (const param::Param& param : trainer.stage().params().params()) {
    plan.parameters.emplace_back(param.name, param.part.count);
  }
  if (decodes && options.training) decode(trainer, options);  // no part of a step's work
  plan.memory = trainer.inspection().memory_plan();
  for (const Arena* arena : trainer.arenas().all()) {
    for (const Allocation& allocation : arena->allocations()) {
      plan.allocations.emplace_back(arena->name(), allocation);
    }
  }
  // The numbers above belong to one step; further steps are only listed.
  for (std::size_t step = 1; step < plan.operations.size(); ++step) {
    run(trainer, options, &plan.operations[step]);
  }
  return plan;
}

}  // namespace hyperslab::plan
