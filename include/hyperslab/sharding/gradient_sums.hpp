// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hyperslab/layout/movement.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/arrivals.hpp"
#include "hyperslab/sharding/named_movement.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// The gradients of a stage, and their sums over the mesh.
///
/// They are summed while backward still runs: a bucket closes as soon as the backward passes of all
/// its units are enqueued. By placement and parameter it is summed
/// - over the ranks with the same key-value heads;
/// - over Bucket::summed_axes(), into the residence's layout;
/// - over the tensor group if its placement there is partial, and over the two ends of a tied
///   table, so that all of them have equal bits.
/// Copies that several tensor ranks hold (replicated parameters, shared key-value heads) go through
/// data groups of their own: they have equal bits if those groups add in one order, as MPI does.
///
/// With rooms, backward writes the gradients of a bucket into one of few rooms; in every microbatch
/// they are summed over the shards' ranks and added to the sums that this rank keeps; once a step
/// these are summed over the ranks that hold copies. A bucket that stays open from the
/// head to the embedding, as a tied table's does, has a room of its own.
class GradientSums {
 public:
  /// Setup: takes memory. Returns, by bucket, where backward writes. The group outlives this.
  [[nodiscard]] std::vector<View> allocate(const param::ParamGroup& group,
                                           const Residence& residence, Arena& arena, DType dtype);
  /// Setup, once the group is bound. The mesh outlives this.
  void connect(const mesh::Mesh& mesh);

  /// Before the first pass of a step.
  void begin_step();
  /// Before anything enqueued on ctx writes gradients of `unit` in a microbatch.
  void before_backward(Context& ctx, int unit, int microbatch);
  /// Backward of `unit` (and of all later ones of its chunk) is enqueued, in the order in which
  /// units end; `last`: in the last microbatch. Starts the sums that became ready.
  void ready(Context& ctx, int unit, int microbatch, bool last);
  /// True if ready() with these arguments would start something.
  [[nodiscard]] bool closes(int unit, int microbatch, bool last) const;
  /// True if gradients are summed over other ranks, or kept outside of what backward writes.
  [[nodiscard]] bool reduces() const;
  /// True if gradients are summed in every microbatch, and so are never added up in place.
  [[nodiscard]] bool reduces_every_microbatch() const { return residence_.written_rooms > 0; }
  /// Lets sums in progress advance; called between units.
  void progress();
  /// Makes work that is enqueued on ctx after this call see the sums.
  void finish(Context& ctx);
  /// After finish(), once all ranks have arrived here: moves the time in which finish() waited for
  /// late ranks from Phase::reduce_exposed to Phase::wait. On the CPU only: on a GPU analysis/
  /// finds it by comparing the ranks of a data group.
  void report_waits(Context& ctx);

  /// Those of a step of so many microbatches, in the order of the buckets.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const;

  [[nodiscard]] const param::StateView& sums() const { return sums_; }
  /// Sums whose squares this rank adds to the norm, so that every element of the model counts once
  /// in the world.
  [[nodiscard]] const std::vector<View>& norm_views() const { return norm_views_; }

 private:
  using Bucket = param::Bucket;
  struct State {
    std::unique_ptr<layout::Movement> sum;  ///< over its axes; none: this rank is alone there
    /// With rooms: over the ranks that hold copies, whose terms `sum` leaves.
    std::unique_ptr<layout::Movement> merge;
    bool is_last = false;          ///< its newest sum is of the step's last microbatch
    bool pending = false;          ///< closed, but its sums are not complete
    int microbatch = -1;           ///< the last one that wrote to it
    std::vector<View> key_values;  ///< parts that are summed over the key-value group
  };
  [[nodiscard]] const Bucket& bucket(std::size_t index) const { return group_->buckets()[index]; }
  [[nodiscard]] comm::Communicator& data() const { return mesh_->group(mesh::kGradients); }
  [[nodiscard]] comm::Communicator* tied() const { return mesh_->tied_group(); }
  /// The part of what backward wrote that has the sums over the bucket's axes.
  [[nodiscard]] View summed(const Bucket& bucket) const;
  void find_key_values();
  void find_norm_views();
  /// The bucket that closes next; -1: none. Buckets close from the last to the first, once in each
  /// microbatch that reduces.
  [[nodiscard]] int next(int microbatch) const;
  [[nodiscard]] bool share_room(const Bucket& a, const Bucket& b) const;
  void close(Context& ctx, std::size_t index);
  static void sum(Context& ctx, comm::Communicator& group, View gradients);
  void note_arrival(Context& ctx) { data_point_ = arrivals_.arrive(ctx, data()); }
  /// Calls wait(), which waits from `point` on.
  template <class Wait>
  void await(Arrivals::Point point, Wait wait);
  /// Phase::reduce_exposed for the life of the result, if there are sums to wait for.
  [[nodiscard]] std::optional<Scope<Phase>> enter_exposed(Context& ctx) const;
  /// If the sums of a bucket are in progress: waits for the one over its axes, then sums over the
  /// others. To be called after enter_exposed().
  void complete(Context& ctx, std::size_t index);
  /// If the bucket is a tied table's: sums it over the two ends of the pipeline.
  void sum_ends(Context& ctx, std::size_t index, View sums);
  /// With rooms, complete(), and adds what this rank keeps to sums().
  void keep(Context& ctx, std::size_t index);

  const param::ParamGroup* group_ = nullptr;
  const mesh::Mesh* mesh_ = nullptr;
  Residence residence_;
  param::StateView sums_;
  std::vector<View> norm_views_;
  std::vector<State> states_;  ///< by bucket
  int next_ = -1;              ///< next() of microbatch_
  int microbatch_ = -1;        ///< the newest that reduces
  Arrivals arrivals_;
  Arrivals::Point data_point_ = 0;  ///< at which this rank waits for the data group
};

}  // namespace hyperslab::sharding
