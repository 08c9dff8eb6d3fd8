// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/layout/layout.hpp"
#include "hyperslab/mesh/parallel_config.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::sharding {

/// The layouts of trained parameters and of what belongs to them on the data ranks, after ZeRO
/// (Rajbhandari et al. 2020). They are of a bucket, which is this rank's part of some tensors: they
/// say nothing of the axes that cut tensors (param::Placements). Their formats are those of
/// Presence::DTypes.
struct Residence {
  layout::Layout value;     ///< values between steps
  layout::Layout present;   ///< values while layers multiply by them
  layout::Layout state;     ///< masters and optimizer state
  layout::Layout written;   ///< gradients as backward writes them
  layout::Layout gradient;  ///< their sums
  /// Buckets, or units, whose present values have memory at a time; 0: all, where they rest.
  int present_rooms = 0;
  /// Buckets whose written gradients have memory at a time; 0: all, where their sums stay.
  int written_rooms = 0;
};

/// The residence of the deck's parallel.zero.
///
///   level  value      state      gradient
///   0      replicate  replicate  replicate
///   1      replicate  flat       flat, within what backward wrote
///   2      replicate  flat       flat; two buckets are written at a time
///   3      flat       flat       as 2; the values of two buckets are present at a time, and so are
///                                frozen values and quantized matrices
///
/// `state`: the memory in which state rests.
[[nodiscard]] Residence zero(int level, Home state = Home::device);
/// The residence of a deck. With zero 3 values stay whole where no other rank has shards, and in a
/// pipeline, whose ranks take forward and backward passes in turn.
[[nodiscard]] Residence residence_of(const mesh::ParallelConfig& parallel,
                                     Home state = Home::device);

/// The residence of matrices that layers do not multiply by as they rest: quantized and frozen, or
/// trained and rounded on the way (fake quantization). In training those of two units at a time are
/// present in the compute dtype, each for a pass; else products read the quantized values.
[[nodiscard]] Residence dequantized(bool training);

/// A layout of a residence as it is for a bucket: it says nothing of Axis::expert if ranks along
/// that hold other tensors.
[[nodiscard]] layout::Layout of_bucket(const param::Bucket& bucket, const layout::Layout& layout);

/// True if the ranks along an axis hold different elements.
[[nodiscard]] inline bool is_flat(const layout::Layout& layout) {
  return !layout.axes(layout::Placement::Kind::flat).empty();
}

}  // namespace hyperslab::sharding
