// SPDX-License-Identifier: Apache-2.0
// A small deck and a trainer on generated tokens, for tests of this module and of those after it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hyperslab/deck/deck.hpp"
#include "hyperslab/optim/schedule.hpp"
#include "hyperslab/plan/plan.hpp"

namespace hyperslab::test {

inline constexpr const char* kSmallDeck = R"(
run: {name: test, seed: 11}
model: {family: gpt2, layers: 3, width: 24, heads: 4, vocabulary: 67, context: 12}
data: {train: [synthetic]}
optimizer: {lr: 3.0e-3, clip_norm: 0.5}
schedule: {name: cosine, warmup_steps: 3}
train: {steps: 60, global_batch: 12, microbatch: 2}
)";

inline train::Config small_config(const std::vector<std::string>& overrides, int ranks) {
  deck::Surroundings surroundings;
  surroundings.ranks = ranks;
  return deck::read_deck(kSmallDeck, "small.yaml", overrides, surroundings);
}

/// A trainer with its own tokens; the mesh must outlive it.
class SmallRun {
 public:
  SmallRun(const train::Config& config, const mesh::Mesh& mesh, int world_rank,
           train::TrainerOptions options = {})
      : config_(config),
        tokens_(io::open_tokens({"synthetic"}, io::RawIds::uint16, config.model.vocabulary,
                                config.run.seed)),
        samples_(*tokens_, io::Sampling::blocks, config.model.context, config.run.seed),
        loader_(samples_, config.train.global_batch, mesh.at(mesh::kSamples), config.parallel.data),
        plan_(plan::make_plan(config, options, world_rank)),
        trainer_(train::Trainer::make(config, mesh, options, plan_.memory)) {
    trainer_->state().initialize();
    trainer_->state().share_initial_values();
  }
  /// Mean loss of the step.
  double step(std::int64_t step) {
    train::Trainer::StepArgs args;
    args.step = step;
    args.learning_rate =
        optim::learning_rate(config_.schedule, config_.optimizer.lr, step, config_.train.steps);
    trainer_->step(args, loader_);
    const ops::StepResult& result = trainer_->result(step);
    return result.loss_sum / result.tokens;
  }
  void fill_slots() { trainer_->fill_slots(loader_, 1); }
  void warm_up(std::int64_t step) { trainer_->warm_up(loader_, step); }
  [[nodiscard]] train::Trainer& trainer() { return *trainer_; }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }

 private:
  train::Config config_;
  std::unique_ptr<io::TokenSource> tokens_;
  io::TokenSamples samples_;
  io::Loader loader_;
  plan::Plan plan_;
  std::unique_ptr<train::Trainer> trainer_;
};

}  // namespace hyperslab::test
