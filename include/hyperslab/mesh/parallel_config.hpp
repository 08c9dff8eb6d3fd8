// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "hyperslab/core/device.hpp"
#include "hyperslab/mesh/axis.hpp"
#include "hyperslab/mesh/schedule.hpp"

namespace hyperslab::mesh {

/// The largest `parallel.zero`; sharding::zero() has a residence for each.
inline constexpr int kMostZero = 3;

/// The way of tokens to the ranks of their experts; automatic: all_gather on GPUs, else all_to_all.
enum class ExchangeKind : std::uint8_t { automatic, all_to_all, all_gather };

/// Deck section `parallel`.
struct ParallelConfig {
  int data = 1;
  int tensor = 1;
  int pipeline = 1;
  int context = 1;        ///< ranks that hold other tokens of the same samples
  bool sequence = false;  ///< sequence parallelism in the tensor group
  Schedule schedule = Schedule::one_forward_one_backward;
  int virtual_stages = 1;
  /// Blocks of every stage of the pipeline, virtual ones too; empty: cut by cost.
  std::vector<std::int64_t> stage_layers = {};
  /// 0 all-reduce | 1 sharded state | 2 sharded state and gradients | 3 sharded values, too
  int zero = 0;
  double bucket_mib = 16;  ///< least size of a gradient bucket
  int shard = 0;           ///< data ranks that share state, the nearest ones; 0: all of them
  int expert = 1;          ///< data ranks that hold other experts, the nearest ones
  ExchangeKind expert_exchange = ExchangeKind::automatic;
  /// Rows of a rank's experts that memory holds at once with all_gather, divided by its tokens'
  /// rows; more of them are computed in further parts.
  double expert_rows = 1.5;
  /// Never automatic.
  [[nodiscard]] ExchangeKind expert_exchange_on(Device device) const {
    if (expert_exchange != ExchangeKind::automatic) return expert_exchange;
    return device == Device::cuda ? ExchangeKind::all_gather : ExchangeKind::all_to_all;
  }
  /// True if gradients are summed in every microbatch, as a rank keeps only its shard of them.
  [[nodiscard]] bool shards_gradients() const { return zero >= 2; }
  /// Data ranks that share state.
  [[nodiscard]] int data_shards() const { return shard == 0 ? data : shard; }
  /// Ranks that hold different shards of state.
  [[nodiscard]] int shards() const { return data_shards() * context; }
  /// Ranks along an axis. Data ranks that share state lie along `fold` and `expert`, copies along
  /// `replica`.
  [[nodiscard]] int size(Axis axis) const {
    switch (axis) {
      case Axis::replica: return data / data_shards();
      case Axis::fold: return data_shards() / expert;
      case Axis::expert: return expert;
      case Axis::pipeline: return pipeline;
      case Axis::context: return context;
      case Axis::tensor: return tensor;
    }
    return 1;
  }
  [[nodiscard]] int ranks() const { return data * pipeline * context * tensor; }
  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

}  // namespace hyperslab::mesh
