// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/present_buckets.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// The values of trained parameters from an update to the layers that multiply by them: ranks
/// update their ranges, and gather the others' while the next forward pass already runs.
///
/// With rooms, a rank keeps its shards alone, and each pass gathers them (PresentBuckets).
class PresentValues {
 public:
  /// Setup, once the store's groups are bound. `overlaps_updates`: updates run beside the next
  /// forward pass. The store outlives this.
  void allocate(param::ParamStore& store, const Residence& residence, Arena* parameters,
                bool overlaps_updates);
  /// Setup. The mesh outlives this.
  void connect(const mesh::Mesh& mesh) { buckets_.connect(mesh); }

  /// The ranges that this rank updates, in the order of the next forward pass. Range i belongs to
  /// bucket i, unless there is one range for all buckets.
  [[nodiscard]] const std::vector<param::ElementRange>& updated_ranges() const { return ranges_; }
  /// Range `index` of updated_ranges() is updated on ctx.
  void after_update(Context& ctx, std::size_t index) { buckets_.changed(ctx, index); }
  /// Range `index` is updated once `end` is complete; before() of its units waits for it.
  void update_ends(std::size_t index, Event end) { buckets_.update_ends(index, std::move(end)); }

  /// Before layers of `unit` are enqueued on ctx: their values come from the last update
  /// (PresentBuckets::before).
  void before(Context& ctx, int unit, Order order) { buckets_.before(ctx, unit, order); }
  void before(Context& ctx, int unit) { buckets_.before(ctx, unit); }
  /// True if before() is to be called for each unit of a pass just before its layers; else it may
  /// be called for all of them at first. `first`: in the first pass since an update.
  [[nodiscard]] bool by_unit(bool first) const {
    return in_rooms() || (first && (overlaps_updates_ || gathers()));
  }
  /// True if every pass gathers values, so that all data ranks must take the same passes.
  [[nodiscard]] bool in_rooms() const { return residence_.present_rooms > 0; }
  /// True if values are gathered from other ranks.
  [[nodiscard]] bool gathers() const;

  /// Those of a step of so many microbatches, in the order of the buckets.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const {
    return buckets_.movements("values", microbatches, true);
  }

  /// Makes work that is enqueued on ctx after this call see all updates of this rank.
  void wait_for_updates(Context& ctx) { buckets_.wait_for_updates(ctx); }
  /// Waits for all updates and gathers; collective over kShards.
  void wait_all(Context& ctx) { buckets_.wait_all(ctx); }
  /// wait_all(), and brings the values that no forward pass of training reads, as other ranks have
  /// sent their FP8 values alone. Collective over kShards.
  void complete(Context& ctx) { buckets_.complete(ctx); }
  /// Masters were filled from outside: makes the values of all ranks follow. Collective over
  /// kShards.
  void masters_changed(Context& ctx);

 private:
  void find_ranges();
  /// By bucket: the matrices of which FP8 values are gathered.
  [[nodiscard]] std::vector<std::vector<param::KeptFp8*>> find_fp8(param::ParamStore& store) const;
  [[nodiscard]] std::vector<View> fp8_rooms(std::span<const std::vector<param::KeptFp8*>> matrices,
                                            Arena* parameters) const;
  void find_gathers(param::ParamStore& store, Arena* parameters);

  const param::ParamGroup* group_ = nullptr;
  Residence residence_;
  bool overlaps_updates_ = false;
  std::vector<param::ElementRange> ranges_;
  PresentBuckets buckets_;
};

}  // namespace hyperslab::sharding
