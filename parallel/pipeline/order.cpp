// SPDX-License-Identifier: Apache-2.0
#include "order.hpp"

#include <algorithm>

namespace hyperslab::pipeline {
namespace {

std::vector<Pass> gpipe(int m) {
  std::vector<Pass> passes;
  passes.reserve(2 * static_cast<std::size_t>(m));
  for (int i = 0; i < m; ++i) passes.push_back({Kind::forward, 0, i});
  for (int i = 0; i < m; ++i) passes.push_back({Kind::backward, 0, i});
  return passes;
}

/// The k-th pass of a chunk-wise order: blocks of `stages` microbatches go through all chunks.
Pass chunk_pass(const Layout& layout, Kind kind, int k) {
  const int p = layout.stages;
  const int v = layout.virtual_stages;
  const int block = k / (p * v);
  const int width = std::min(p, layout.microbatches - block * p);
  const int within = k - block * p * v;
  const int chunk = within / width;
  return {kind, kind == Kind::backward ? v - 1 - chunk : chunk, block * p + within % width};
}

/// Some forwards, then one forward and one backward in turn, then the rest of the backwards.
std::vector<Pass> one_in_one_out(const Layout& layout, int warmup) {
  const int total = layout.microbatches * layout.virtual_stages;
  std::vector<Pass> passes;
  for (int k = 0; k < total + warmup; ++k) {
    if (k < total) passes.push_back(chunk_pass(layout, Kind::forward, k));
    if (k >= warmup) passes.push_back(chunk_pass(layout, Kind::backward, k - warmup));
  }
  return passes;
}

std::vector<Pass> forward_only(const Layout& layout) {
  const int total = layout.microbatches * layout.virtual_stages;
  std::vector<Pass> passes;
  passes.reserve(static_cast<std::size_t>(total));
  for (int k = 0; k < total; ++k) {
    passes.push_back(chunk_pass(layout, Kind::forward, k));
  }
  return passes;
}

int warmup_of(const Layout& layout, int rank) {
  const int p = layout.stages;
  const int v = layout.virtual_stages;
  const int warmup = v == 1 ? p - 1 - rank : 2 * (p - 1 - rank) + (v - 1) * p;
  return std::min(warmup, layout.microbatches * v);
}

/// ZB-H1 (Qi et al. 2023, fig. 3): 1f1b with input gradients alone; rank s does weight gradients s
/// microbatches late, so that (p - s) + s = p microbatches are in flight on every rank.
std::vector<Pass> zero_bubble(const Layout& layout, int rank) {
  const int m = layout.microbatches;
  const int warmup = layout.stages - 1 - rank;
  std::vector<Pass> passes;
  for (int k = -warmup; k < m + rank; ++k) {
    if (k + warmup < m) passes.push_back({Kind::forward, 0, k + warmup});
    if (k >= 0 && k < m) passes.push_back({Kind::backward_input, 0, k});
    if (k >= rank) passes.push_back({Kind::backward_weight, 0, k - rank});
  }
  return passes;
}

}  // namespace

int unit_cost(Kind kind) { return kind == Kind::backward ? 2 : 1; }

std::vector<std::vector<Pass>> compute_orders(const Layout& layout) {
  std::vector<std::vector<Pass>> orders;
  for (int rank = 0; rank < layout.stages; ++rank) {
    if (layout.schedule == Schedule::gpipe)
      orders.push_back(gpipe(layout.microbatches));
    else if (layout.schedule == Schedule::zero_bubble)
      orders.push_back(zero_bubble(layout, rank));
    else if (layout.schedule == Schedule::forward_only)
      orders.push_back(forward_only(layout));
    else
      orders.push_back(one_in_one_out(layout, warmup_of(layout, rank)));
  }
  return orders;
}

}  // namespace hyperslab::pipeline
