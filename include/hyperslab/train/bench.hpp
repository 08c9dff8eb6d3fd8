// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {

enum class BenchMode : std::uint8_t { forward, forward_backward, step };

struct BenchOptions {
  BenchMode mode = BenchMode::step;
  int warmup = 5;
  int steps = 10;
  /// No warm-up; the first step holds the setup: plan building, memory, first calls.
  bool cold = false;
  /// Also time the parts of the model; on a GPU this turns graphs off.
  bool components = false;
};

struct BenchComponent {
  std::string name;
  double seconds = 0;         ///< mean of a step
  double flops = 0;           ///< of a step, from the plan
  double share = 0;           ///< of the step's seconds
  double expected_share = 0;  ///< of the step's FLOPs
};

/// Figures of the slowest rank where ranks differ.
struct BenchResult {
  std::vector<double> step_seconds;  ///< every measured step, the longest of all ranks
  double mean = 0;
  double standard_deviation = 0;  ///< of the sample, n - 1
  double median = 0;
  double tokens = 0;       ///< of a step, all ranks
  double model_flops = 0;  ///< of a step, all ranks, causal
  double model_flops_full = 0;
  /// FLOP/s of all ranks together in an fp32 product of 2048 x 2048 x 2048: the median of one
  /// product behind every measured step, so that both see the same machine.
  double matmul_rate = 0;
  std::int64_t memory_peak_bytes = 0;
  std::vector<BenchComponent> components;
  [[nodiscard]] double tokens_per_second() const { return tokens / median; }
  [[nodiscard]] double flops_per_second() const { return model_flops / median; }
  /// Causal. Rates are those of the median step.
  [[nodiscard]] double mfu() const { return flops_per_second() / matmul_rate; }
};

/// Times steps of a deck on generated tokens. Collective over the world.
[[nodiscard]] BenchResult run_bench(comm::World& world, const Config& config,
                                    const BenchOptions& options);

}  // namespace hyperslab::train
