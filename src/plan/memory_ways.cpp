// SPDX-License-Identifier: Apache-2.0
#include "memory_ways.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <ranges>

namespace hyperslab::plan {
namespace {

using nn::Recompute;
using train::Config;

/// The values of parallel.zero for a cut, the least sharding first.
std::vector<int> zeros_of(const Config& layout) {
  // FP8 gathers require sharded state, on one rank as well.
  if (layout.parallel.shards() == 1) return {layout.precision.fp8_param_gather ? 1 : 0};
  return {1, 2, 3};
}

Config with(Config config, Recompute recompute, int zero) {
  config.memory.recompute = recompute;
  config.parallel.zero = zero;
  return config;
}

/// Blocks of a rank that are computed again; those of the model where that is all.
std::int64_t blocks_again(const Config& config) {
  if (config.memory.recompute != Recompute::full) return 0;
  return config.memory.recompute_layers > 0 ? config.memory.recompute_layers : config.model.layers;
}

void count_nothing(const std::string& /*reason*/) {}

}  // namespace

std::vector<MemoryWays::Way> MemoryWays::of(const Config& layout, const Refused& refused) const {
  for (const Recompute recompute : nn::kRecomputes) {
    for (const int zero : zeros_of(layout)) {
      const Config config = with(layout, recompute, zero);
      std::string reason = why_not_(config);
      if (reason.empty() && !room_.fits(config)) reason = kNeedsMemory;
      if (reason.empty()) return with_kept_blocks(layout, config);
      refused(reason);
    }
  }
  return {};
}

/// `first`: the first that fits. Others shard less or compute fewer blocks again.
std::vector<MemoryWays::Way> MemoryWays::with_kept_blocks(const Config& layout,
                                                          const Config& first) const {
  std::vector<Way> ways;
  if (first.memory.recompute != Recompute::full) ways.push_back({first});
  const bool keeps_all = first.memory.recompute == Recompute::none;
  std::optional<std::int64_t> fewest;
  for (const int zero : zeros_of(layout)) {
    if (keeps_all && zero >= first.parallel.zero) break;
    const Config config = with(layout, Recompute::full, zero);
    if (!is_legal(config)) continue;
    const std::optional<Config> kept = room_.keep_blocks(config);
    if (!kept || (fewest && blocks_again(*kept) >= *fewest)) continue;
    fewest = blocks_again(*kept);
    ways.push_back({*kept});
  }
  return ways;
}

std::vector<MemoryWays::Way> MemoryWays::last_resorts(const Config& layout) const {
  std::vector<Config> tried = in_pieces(layout);
  if (tried.empty() || !fits_at_all(tried.back())) tried.clear();
  if (may_use_host_) {
    Config on_host = layout;
    on_host.memory.optimizer = Home::host;
    std::vector<Config> more = {on_host};
    std::ranges::copy(in_pieces(on_host), std::back_inserter(more));
    if (fits_at_all(more.back())) std::ranges::copy(more, std::back_inserter(tried));
  }
  for (const Config& config : tried) {
    std::vector<Way> ways = of(config, count_nothing);
    if (ways.empty()) continue;
    if (config.memory.optimizer == Home::host) {
      for (Way& way : ways) way = with_kept_state(way.front());
    }
    return ways;
  }
  return {};
}

/// With as much state on the device as fits: beside all activations that the configuration keeps,
/// and with a quarter, half, ... of the blocks that keep theirs computed again, too.
MemoryWays::Way MemoryWays::with_kept_state(const Config& config) const {
  constexpr std::int64_t kSteps = 4;
  Way way = {room_.keep_state(config)};
  if (config.memory.recompute == Recompute::selective) return way;
  const std::int64_t stages = config.parallel.pipeline;
  const std::int64_t all = (config.model.layers + stages - 1) / stages;
  const std::int64_t first = blocks_again(config);
  std::int64_t before = first;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const std::int64_t blocks = first + (all - first) * step / kSteps;
    if (blocks <= before) continue;
    before = blocks;
    Config next = with(config, Recompute::full, config.parallel.zero);
    next.memory.recompute_layers = blocks < all ? blocks : 0;
    if (is_legal(next) && room_.fits(next)) way.push_back(room_.keep_state(next));
  }
  return way;
}

/// True if the layout fits with the most that recomputation and sharding save.
bool MemoryWays::fits_at_all(const Config& layout) const {
  for (const int zero : std::views::reverse(zeros_of(layout))) {
    const Config config = with(layout, Recompute::full, zero);
    if (is_legal(config)) return room_.fits(config);
  }
  return false;
}

/// With a feed-forward network in pieces, then with the loss in pieces, too, as far as the rules
/// allow and pieces are smaller than the whole.
std::vector<Config> MemoryWays::in_pieces(const Config& layout) const {
  std::vector<Config> pieces;
  const auto add = [&](const Config& config) {
    if (is_legal(with(config, Recompute::full, zeros_of(config).front()))) pieces.push_back(config);
  };
  Config config = layout;
  if (const std::optional<std::int64_t> rows = rows_of_pieces(layout)) {
    config.memory.mlp_rows = *rows;
    add(config);
  }
  // Logits of a GPU take up to 1 GiB, those of CPU ranks 32 MiB.
  constexpr std::int64_t kLossRows = 1024;  // so that products take no longer
  const std::int64_t all = layout.train.microbatch * layout.model.context;
  const std::int64_t now = layout.memory.loss_rows > 0 ? layout.memory.loss_rows : all;
  if (options_.device != Device::cuda || std::min(now, all) <= kLossRows) return pieces;
  config = pieces.empty() ? layout : config;
  config.memory.loss_rows = kLossRows;
  add(config);
  return pieces;
}

Config MemoryWays::fitted(Config config) const {
  if (config.memory.recompute_layers > 0) {
    const bool on_host = config.memory.optimizer == Home::host;
    if (on_host) config.memory.resident_gib = 0;
    config = room_.keep_blocks(config).value_or(config);
  }
  return config.memory.optimizer == Home::host ? room_.keep_state(config) : config;
}

}  // namespace hyperslab::plan
