// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hyperslab/layout/movement.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

class Fp8Gather;

/// The values of trained parameters from an update to the layers that multiply by them: ranks
/// update their ranges, and gather the others' while the next forward pass already runs.
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

  /// Before layers of `unit` are enqueued on ctx: their values come from the last update.
  void before(Context& ctx, int unit);
  /// True if before() may have to wait; if not, it need not be called for each unit.
  [[nodiscard]] bool waits() const { return overlaps_updates_ || gathers(); }
  /// True if values are gathered from other ranks.
  [[nodiscard]] bool gathers() const;

  /// Makes work that is enqueued on ctx after this call see all updates of this rank.
  void wait_for_updates(Context& ctx);
  /// Waits for all updates and gathers; collective over the data group.
  void wait_all(Context& ctx);
  /// wait_all(), and brings the values that no forward pass of training reads, as other ranks have
  /// sent their FP8 values alone. Collective over the data group.
  void complete(Context& ctx);
  /// Masters were filled from outside: makes the values of all data ranks follow. Collective over
  /// the data group.
  void masters_changed(Context& ctx);

 private:
  struct State {
    std::optional<layout::Movement> gather;
    Event update = {};  ///< end of an update in progress; complete: none
  };
  void find_ranges();
  /// The part of before() that waits for the other ranks' values of bucket `index`.
  void await_gather(Context& ctx, std::size_t index);

  const param::ParamGroup* group_ = nullptr;
  comm::Communicator* data_ = nullptr;
  Residence residence_;
  bool overlaps_updates_ = false;
  std::vector<param::ElementRange> ranges_;
  std::vector<State> states_;        ///< by bucket
  std::unique_ptr<Fp8Gather> fp8_;  ///< if matrices ask for it
};

}  // namespace hyperslab::sharding
