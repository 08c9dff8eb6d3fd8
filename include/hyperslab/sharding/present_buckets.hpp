// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/sharding/named_movement.hpp"

namespace hyperslab::sharding {

class ValueGather;

/// The order in which a pass takes the units.
enum class Order : std::uint8_t { ascending, descending };

/// Buckets that layers read, and the gathers that bring them.
///
/// A bucket that shares a room is gathered by each pass, while the layers before it compute; one
/// that is still there is not gathered again. Buckets that share rooms take turns in them, so that
/// neighbors are in different ones. Those of experts have rooms and turns of their own, as a unit
/// may have one beside another bucket. A bucket with a room of its own is gathered after it
/// changed.
class PresentBuckets {
 public:
  struct Bucket {
    int first_unit = 0;
    int last_unit = 0;
    const void* room = nullptr;           ///< memory where layers read it
    bool of_experts = false;              ///< it takes turns with such buckets alone
    bool shares = false;                  ///< its room is also other buckets'
    std::unique_ptr<ValueGather> gather;  ///< none: every rank has all of it
    Event update = {};                    ///< end of an update in progress; complete: none
    bool present = false;                 ///< if it shares a room: it is there, or on its way
    [[nodiscard]] bool has(int unit) const { return unit >= first_unit && unit <= last_unit; }
  };

  PresentBuckets();
  ~PresentBuckets();
  PresentBuckets(const PresentBuckets&) = delete;
  PresentBuckets& operator=(const PresentBuckets&) = delete;
  PresentBuckets(PresentBuckets&&) = delete;
  PresentBuckets& operator=(PresentBuckets&&) = delete;

  /// Setup. Buckets are numbered in this order.
  void add(Bucket bucket);
  /// Setup, once all are added. The mesh outlives this.
  void connect(const mesh::Mesh& mesh);

  /// This rank's part of a bucket was changed by work on ctx. By all ranks in the same order.
  void changed(Context& ctx, std::size_t index);
  /// changed() of every bucket.
  void all_changed(Context& ctx);
  /// A bucket's update ends with `end`; before() of its units waits for it.
  void update_ends(std::size_t index, Event end);

  /// Before layers of `unit` are enqueued on ctx. Starts to gather the buckets in shared rooms that
  /// hold the next unit in this order.
  void before(Context& ctx, int unit, Order order);
  /// before() without the next unit: for passes in which no unit comes next, or not soon.
  void before(Context& ctx, int unit);
  /// Makes work that is enqueued on ctx after this call see all updates of this rank.
  void wait_for_updates(Context& ctx);
  /// Waits for all updates and gathers; collective over kShards.
  void wait_all(Context& ctx);
  /// wait_all(), and ValueGather::complete() of every bucket. Collective over kShards.
  void complete(Context& ctx);

  /// Those of a step of so many microbatches, in the order of the buckets. `trained`: they change
  /// from step to step; else a step finds what the step before has left.
  [[nodiscard]] std::vector<NamedMovement> movements(std::string_view name, int microbatches,
                                                     bool trained) const;

 private:
  /// If the bucket shares a room and is not there: starts to gather it.
  void make_present(Context& ctx, Bucket& mine);
  /// The next bucket after `unit`, of experts or not, that shares a room; none: it is the last.
  [[nodiscard]] std::optional<std::size_t> next_shared(int unit, Order order,
                                                       bool of_experts) const;
  /// By bucket: gathers of those that share rooms, in movements().
  [[nodiscard]] std::vector<int> gathers_of_step(int microbatches, bool trained) const;

  std::vector<Bucket> buckets_;
};

}  // namespace hyperslab::sharding
