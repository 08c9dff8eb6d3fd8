// SPDX-License-Identifier: Apache-2.0
#include "compute_schedule.hpp"

#include <algorithm>

namespace hyperslab::pipeline {
namespace {

std::vector<ComputePass> gpipe(int m) {
  std::vector<ComputePass> passes;
  passes.reserve(2 * static_cast<std::size_t>(m));
  for (int i = 0; i < m; ++i) passes.push_back({ActionKind::forward, 0, i});
  for (int i = 0; i < m; ++i) passes.push_back({ActionKind::backward, 0, i});
  return passes;
}

/// The k-th pass of a chunk-wise schedule: blocks of `stages` microbatches go through all chunks.
ComputePass chunk_pass(const PipelineShape& shape, ActionKind kind, int k) {
  const int p = shape.stages;
  const int v = shape.virtual_stages;
  const int block = k / (p * v);
  const int width = std::min(p, shape.microbatches - block * p);
  const int within = k - block * p * v;
  const int chunk = within / width;
  return {kind, kind == ActionKind::backward ? v - 1 - chunk : chunk, block * p + within % width};
}

/// Some forwards, then one forward and one backward in turn, then the rest of the backwards.
std::vector<ComputePass> one_in_one_out(const PipelineShape& shape, int warmup) {
  const int total = shape.microbatches * shape.virtual_stages;
  std::vector<ComputePass> passes;
  for (int k = 0; k < total + warmup; ++k) {
    if (k < total) passes.push_back(chunk_pass(shape, ActionKind::forward, k));
    if (k >= warmup) passes.push_back(chunk_pass(shape, ActionKind::backward, k - warmup));
  }
  return passes;
}

std::vector<ComputePass> forward_only(const PipelineShape& shape) {
  const int total = shape.microbatches * shape.virtual_stages;
  std::vector<ComputePass> passes;
  passes.reserve(static_cast<std::size_t>(total));
  for (int k = 0; k < total; ++k) {
    passes.push_back(chunk_pass(shape, ActionKind::forward, k));
  }
  return passes;
}

int warmup_of(const PipelineShape& shape, int rank) {
  const int p = shape.stages;
  const int v = shape.virtual_stages;
  const int warmup = v == 1 ? p - 1 - rank : 2 * (p - 1 - rank) + (v - 1) * p;
  return std::min(warmup, shape.microbatches * v);
}

/// ZB-H1 (Qi et al. 2023, fig. 3): 1f1b with input gradients alone; rank s does weight gradients s
/// microbatches late, so that (p - s) + s = p microbatches are in flight on every rank.
std::vector<ComputePass> zero_bubble(const PipelineShape& shape, int rank) {
  const int m = shape.microbatches;
  const int warmup = shape.stages - 1 - rank;
  std::vector<ComputePass> passes;
  for (int k = -warmup; k < m + rank; ++k) {
    if (k + warmup < m) passes.push_back({ActionKind::forward, 0, k + warmup});
    if (k >= 0 && k < m) passes.push_back({ActionKind::backward_input, 0, k});
    if (k >= rank) passes.push_back({ActionKind::backward_weight, 0, k - rank});
  }
  return passes;
}

}  // namespace

int unit_cost(ActionKind kind) { return kind == ActionKind::backward ? 2 : 1; }

std::vector<std::vector<ComputePass>> compute_schedules(const PipelineShape& shape) {
  std::vector<std::vector<ComputePass>> schedules;
  for (int rank = 0; rank < shape.stages; ++rank) {
    if (shape.schedule == Schedule::gpipe)
      schedules.push_back(gpipe(shape.microbatches));
    else if (shape.schedule == Schedule::zero_bubble)
      schedules.push_back(zero_bubble(shape, rank));
    else if (shape.schedule == Schedule::forward_only)
      schedules.push_back(forward_only(shape));
    else
      schedules.push_back(one_in_one_out(shape, warmup_of(shape, rank)));
  }
  return schedules;
}

}  // namespace hyperslab::pipeline
