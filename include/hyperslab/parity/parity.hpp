// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::parity {

/// Whole tensors by name, "gradient/blocks.0.norm1.weight".
using GlobalTensors = std::map<std::string, std::vector<float>>;

/// Puts the slabs of all ranks together on rank 0 (elsewhere nothing); collective. Throws an
/// internal Error if they do not cover a tensor exactly once.
[[nodiscard]] GlobalTensors gather_tensors(comm::World& world, const std::vector<io::Slab>& slabs);

/// The results of a layout, on rank 0.
struct LayoutTrace {
  std::vector<double> losses;  ///< nats per token, of every step
  GlobalTensors gradients;     ///< gradients of step 1
};

/// Trains `steps` steps of the deck under its layout, on the first parallel.ranks() ranks of the
/// world; the others wait. `is_legal`: for advice if memory runs out. Collective over the world.
[[nodiscard]] LayoutTrace trace_layout(comm::World& world, const train::Config& config,
                                       std::int64_t steps, const plan::IsLegal& is_legal = {});

/// Steps whose losses have ParityTolerance::loss.
inline constexpr std::int64_t kEarlySteps = 10;

/// The largest differences that two layouts may have.
struct ParityTolerance {
  double gradient = 2e-6;   ///< difference in step 1, see compare()
  double loss = 1e-5;       ///< relative, over the first kEarlySteps
  double late_loss = 1e-4;  ///< relative, in later steps
};
/// Layouts cut matrices and microbatches differently, and so choose other scales of 8-bit floats.
[[nodiscard]] ParityTolerance parity_tolerance(const train::PrecisionConfig& precision);

struct ParityReport {
  struct Row {
    std::string tensor;
    double difference = 0;
  };
  std::vector<Row> rows;        ///< a row per tensor, the largest difference first
  double loss_difference = 0;   ///< relative, the largest of all steps
  std::int64_t worst_step = 0;  ///< its step; 0: the losses of all steps are equal
  bool agrees = false;
};
/// Per tensor max|a - b| / max(max|a|, 1e-3 of the largest of its kind (weights or biases)), so
/// that gradients which are zero in theory do not matter.
[[nodiscard]] ParityReport compare(const LayoutTrace& a, const LayoutTrace& b,
                                   const ParityTolerance& tolerance);

}  // namespace hyperslab::parity
