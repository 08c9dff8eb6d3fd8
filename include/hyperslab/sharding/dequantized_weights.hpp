// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/named_movement.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// The matrices that layers do not multiply by as they rest (param::QuantizedWeight), from there to
/// the rooms in which they are present. A unit's matrices share a room, which a unit after it
/// takes again.
class DequantizedWeights {
 public:
  /// Setup: takes memory for quantized values, and for the rooms of the residence; without rooms
  /// products read the quantized values. The store outlives this.
  void allocate(param::ParamStore& store, const Residence& residence, Arena& arena, DType compute);

  /// True if matrices of a unit have a room.
  [[nodiscard]] bool has(int unit) const;
  /// Enqueues the dequantization of a unit's matrices. Collective over
  /// param::QuantizedWeight::row_ranks if trained values are rounded.
  void write(Context& ctx, int unit) const;
  /// Switches fake quantization on or off; off, values are taken as they are. On at first.
  void set_rounding(bool rounds);

  /// Those of a step of so many microbatches, in the order of the units.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const;

 private:
  std::vector<std::vector<param::QuantizedWeight*>> by_unit_;
};

}  // namespace hyperslab::sharding
