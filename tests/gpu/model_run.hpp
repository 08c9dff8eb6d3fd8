// SPDX-License-Identifier: Apache-2.0
// Whole models of one rank on generated tokens, on the CPU and on a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_test.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/optim/schedule.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/train/setup.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::test {

using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The deck under the rules of this machine.
inline train::Config read_model(const std::string& deck, const Overrides& overrides) {
  deck::Surroundings surroundings;
  surroundings.has_cuda_device = cuda_device_count() > 0;
  return deck::read_deck(deck, "model.yaml", overrides, surroundings);
}

/// A trainer of the deck's training tokens on the deck's device; without `graphs` the host enqueues
/// every step's kernels, without `overlap_update` updates end before the next step begins.
class ModelRun {
 public:
  explicit ModelRun(const train::Config& config, bool canary = false, bool graphs = true,
                    bool overlap_update = true)
      : config_(config),
        options_(train::trainer_options(config, world().local_rank(), true)),
        tokens_(io::open_data(config.data, config.model.vocabulary, config.run.seed).train),
        samples_(*tokens_, io::Sampling::blocks, config.model.context, config.run.seed),
        loader_(samples_, config.train.global_batch, 0, 1),
        mesh_(train::make_mesh(world(), config, options_.device)),
        plan_(plan::make_plan(config, options_, 0)) {
    options_.canary = canary;
    options_.graphs = graphs;
    options_.overlap_update = overlap_update;
    trainer_ = train::Trainer::make(config, *mesh_, options_, plan_.memory);
    trainer_->state().initialize();
    trainer_->state().share_initial_values();
  }
  /// Mean loss of the step, in nats.
  double step(std::int64_t step) {
    enqueue(step);
    return loss(step);
  }
  /// Of a step that is at most two older than the newest.
  [[nodiscard]] double loss(std::int64_t step) const {
    const ops::StepResult& result = trainer_->result(step);
    return result.loss_sum / result.tokens;
  }
  void enqueue(std::int64_t step) {
    train::Trainer::StepArgs args;
    args.step = step;
    args.learning_rate =
        optim::learning_rate(config_.schedule, config_.optimizer.lr, step, config_.train.steps);
    trainer_->step(args, loader_);
  }
  [[nodiscard]] const train::Trainer& trainer() const { return *trainer_; }
  [[nodiscard]] train::Trainer& trainer() { return *trainer_; }
  [[nodiscard]] const model::MemoryPlan& plan() const { return plan_.memory; }

 private:
  train::Config config_;
  train::TrainerOptions options_;
  std::unique_ptr<io::TokenSource> tokens_;
  io::TokenSamples samples_;
  io::Loader loader_;
  std::unique_ptr<mesh::Mesh> mesh_;
  plan::Plan plan_;
  std::unique_ptr<train::Trainer> trainer_;
};

}  // namespace hyperslab::test
