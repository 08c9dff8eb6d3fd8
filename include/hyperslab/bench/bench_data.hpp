// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::bench {

/// One way of getting the microbatches of a step.
struct DataBenchRow {
  std::string name;
  std::vector<double> step_seconds;             ///< medians over the measured steps, of every rank
  std::vector<double> rank_targets_per_second;  ///< rate of every rank in its median step
  [[nodiscard]] double targets_per_second() const;  ///< sum over the ranks
};

struct DataBenchResult {
  std::string source;       ///< one line on the tokens or images
  bool of_images = false;   ///< targets are images, else tokens
  double rank_targets = 0;  ///< targets of one step on one rank
  double rank_bytes = 0;    ///< bytes of a stage's views in one step, on one rank
  double counted = 0;       ///< share of the measured steps' targets that counts
  std::vector<DataBenchRow> rows;
};

/// Times the loader of a deck alone: its training files, its global batch and microbatches, at each
/// rank's position in the data groups. Rows: reading into host memory, of text without and with the
/// token sort index (which stages with an embedding need), and the prefetching feed that a step
/// takes its samples from, whose threads are then the only work beside. Collective over the world.
[[nodiscard]] DataBenchResult run_data_bench(comm::World& world, const train::Config& config,
                                             int warmup, int steps);

/// Writes the images of step 1's global batch as the model sees them, augmented and of its size, to
/// an .npy of u8 (images, rows, columns, 3). Throws Error(usage) for a deck of text, Error(data)
/// and Error(storage).
void write_samples(const train::Config& config, const std::string& path);

}  // namespace hyperslab::bench
