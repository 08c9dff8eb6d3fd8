// SPDX-License-Identifier: Apache-2.0
// A trainer with generated tokens, for benches.
#pragma once

#include <memory>

#include "hyperslab/bench/bench.hpp"
#include "hyperslab/comm/world.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::bench {

class BenchRig {
 public:
  /// Collective over the world. Every slot holds the first microbatch.
  BenchRig(comm::World& world, train::Config config, const BenchOptions& options);

  /// Enqueues a step on the slots' present data, or on the loader's next microbatches.
  void run(BenchMode mode, std::int64_t step, bool loads = false);
  /// A step on the data that the slots hold, with a timeline of memory for memory().
  void trace(BenchMode mode, std::int64_t step);

  [[nodiscard]] train::Trainer& trainer() { return *trainer_; }
  [[nodiscard]] const train::Trainer& trainer() const { return *trainer_; }
  [[nodiscard]] const train::TrainerOptions& options() const { return trainer_options_; }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] bool on_gpu() const { return trainer_options_.device == Device::cuda; }
  /// The key shares of the data in the slots, or of the loader's first step.
  [[nodiscard]] KeyShares key_shares() const { return loader_->key_shares(1); }
  /// The memory of this rank; on a GPU the memory in use is read from it.
  [[nodiscard]] BenchMemory memory() const;

 private:
  [[nodiscard]] train::Trainer::StepArgs arguments(std::int64_t step) const;
  void run(BenchMode mode, const train::Trainer::StepArgs& args, bool loads);

  train::Config config_;
  train::TrainerOptions trainer_options_;
  std::unique_ptr<mesh::Mesh> mesh_;
  plan::Plan plan_;
  std::size_t bytes_before_ = 0;
  train::DeckData data_;
  std::unique_ptr<io::Loader> loader_;
  std::unique_ptr<train::Trainer> trainer_;
  bool has_timeline_ = false;
};

/// The settings that decide which work shares kernels.
struct BenchRun {
  const train::Config& config;
  const train::TrainerOptions& options;
  BenchMode mode = BenchMode::step;
};
/// Rows for the parts of the model, from seconds of this rank and the plan.
[[nodiscard]] std::vector<BenchComponent> components_of(
    const std::array<double, kMaxComponents>& seconds, const Ledger& ledger, const BenchRun& run);

}  // namespace hyperslab::bench
