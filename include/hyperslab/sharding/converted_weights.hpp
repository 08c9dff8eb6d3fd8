// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/named_movement.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// The matrices that are present in another format than they rest in:
/// - dequantized for a pass (param::QuantizedWeight); a unit's matrices share a room, which others
///   take in turn;
/// - in FP8 for a step (param::KeptFp8), which the products themselves write.
class ConvertedWeights {
 public:
  /// Setup: takes memory for quantized values and, in training, for the rooms of the residence and
  /// for FP8 values; without rooms products read the quantized values. The store outlives this.
  void allocate(param::ParamStore& store, const Residence& residence, Arena& arena, DType compute);

  /// True if matrices of a unit have a room.
  [[nodiscard]] bool has(int unit) const;
  /// Enqueues the dequantization of a unit's matrices. Collective over
  /// param::QuantizedWeight::row_ranks if trained values are rounded.
  void write(Context& ctx, int unit) const;
  /// Switches fake quantization on or off; off, values are taken as they are. On at first.
  void set_rounding(bool rounds);

  /// Those of a step of so many microbatches, in the order of the units; `renewals`: passes that
  /// write FP8 values; `is_ahead`: a pass dequantizes the next unit's matrices beside its layers.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches, int renewals,
                                                     bool is_ahead) const;

 private:
  param::ParamStore* store_ = nullptr;
};

}  // namespace hyperslab::sharding
