// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::eval {

/// A trainer without gradients that takes one checkpoint after the other.
class LoadedModel {
 public:
  struct Parts {
    comm::World& world;
    const train::Config& config;
    const mesh::Mesh& mesh;
    train::TrainerOptions options;
    plan::IsLegal is_legal;  ///< for advice if memory runs out
    bool averages = false;   ///< loads averages in place of the weights
  };
  /// The referenced parts outlive this.
  explicit LoadedModel(Parts parts) : parts_(std::move(parts)) {}

  /// Loads a checkpoint: a step's folder, a directory of them, or a run directory. Returns its
  /// step. Collective over the world. Throws Error(checkpoint): damaged, or of another model.
  std::int64_t load(const std::string& checkpoint);
  /// After load().
  [[nodiscard]] train::Trainer& trainer() { return *trainer_; }

 private:
  void make_trainer(const std::string& checkpoint);

  Parts parts_;
  std::unique_ptr<train::Trainer> trainer_;
};

/// Seconds since `start` of the slowest rank. Collective.
[[nodiscard]] double slowest_seconds_since(comm::World& world,
                                           std::chrono::steady_clock::time_point start);

}  // namespace hyperslab::eval
