// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/named_movement.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

class ValueGather;

/// The values of trained parameters from an update to the layers that multiply by them: ranks
/// update their ranges, and gather the others' while the next forward pass already runs.
///
/// With rooms, a rank keeps its shards alone. Each pass gathers the values of a bucket into one of
/// few rooms, while the layers before it compute; a bucket that is still there is not gathered
/// again. A bucket that has a room of its own is gathered after its update.
class PresentValues {
 public:
  PresentValues();
  ~PresentValues();
  PresentValues(const PresentValues&) = delete;
  PresentValues& operator=(const PresentValues&) = delete;
  PresentValues(PresentValues&&) = delete;
  PresentValues& operator=(PresentValues&&) = delete;

  /// Setup, once the store's groups are bound. `overlaps_updates`: updates run beside the next
  /// forward pass. The store outlives this.
  void allocate(param::ParamStore& store, const Residence& residence, Arena* parameters,
                bool overlaps_updates);
  /// Setup. The mesh outlives this.
  void connect(const mesh::Mesh& mesh);

  /// The ranges that this rank updates, in the order of the next forward pass. Range i belongs to
  /// bucket i, unless there is one range for all buckets.
  [[nodiscard]] const std::vector<param::ElementRange>& updated_ranges() const { return ranges_; }
  /// Range `index` of updated_ranges() is updated on ctx.
  void after_update(Context& ctx, std::size_t index);
  /// Range `index` is updated once `end` is complete; before() of its units waits for it.
  void update_ends(std::size_t index, Event end);

  /// The order in which a pass takes the units.
  enum class Order : std::uint8_t { ascending, descending };
  /// Before layers of `unit` are enqueued on ctx: their values come from the last update. With
  /// rooms, starts to gather those of the next unit in this order.
  void before(Context& ctx, int unit, Order order);
  /// before() without the next unit: for passes in which no unit comes next, or not soon.
  void before(Context& ctx, int unit);
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
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const;

  /// Makes work that is enqueued on ctx after this call see all updates of this rank.
  void wait_for_updates(Context& ctx);
  /// Waits for all updates and gathers; collective over kShards.
  void wait_all(Context& ctx);
  /// wait_all(), and brings the values that no forward pass of training reads, as other ranks have
  /// sent their FP8 values alone. Collective over kShards.
  void complete(Context& ctx);
  /// Masters were filled from outside: makes the values of all ranks follow. Collective over
  /// kShards.
  void masters_changed(Context& ctx);

 private:
  struct State {
    std::unique_ptr<ValueGather> gather;  ///< none: every rank has all values
    Event update = {};                    ///< end of an update in progress; complete: none
    bool shares = false;                  ///< its room is also other buckets'
    bool present = false;  ///< if it shares a room: its values are there, or on their way
  };
  void find_ranges();
  void find_gathers(param::ParamStore& store, Arena* parameters);
  /// If the bucket shares a room and is not there: starts to gather it.
  void make_present(Context& ctx, std::size_t index);
  /// The bucket in a room that has the values of the unit after `unit`; none: it is the last.
  [[nodiscard]] std::optional<std::size_t> next_shared(int unit, Order order) const;
  [[nodiscard]] bool is_in(std::size_t bucket, int unit) const;

  const param::ParamGroup* group_ = nullptr;
  Residence residence_;
  bool overlaps_updates_ = false;
  std::vector<param::ElementRange> ranges_;
  std::vector<State> states_;  ///< by bucket
};

}  // namespace hyperslab::sharding
