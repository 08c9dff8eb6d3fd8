// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/arrivals.hpp"

namespace hyperslab::sharding {

/// Which part of masters, optimizer state and gradients each rank of a data group keeps, and how
/// updated values reach the others: ZeRO (Rajbhandari et al. 2020). The step drives a strategy,
/// which owns the memory of masters and gradients, the reductions and the gathers.
///
///   Replicated        zero 0: every rank keeps and updates everything
///   ShardedState      zero 1: masters and optimizer state are sharded
///   ShardedGradients  zero 2: gradients, too
///
/// Gradients are summed while backward still runs: a bucket closes as soon as the backward passes
/// of all its units are enqueued. By placement and parameter it is summed
/// - over the ranks with the same key-value heads;
/// - over the data group;
/// - over the tensor group if its placement there is partial, and over the two ends of a tied
///   table, so that all of them have equal bits.
/// Copies that several tensor ranks hold (replicated parameters, shared key-value heads) go through
/// data groups of their own: they have equal bits if those groups add in one order, as MPI does.
class ShardStrategy {
 public:
  virtual ~ShardStrategy() = default;
  ShardStrategy(const ShardStrategy&) = delete;
  ShardStrategy& operator=(const ShardStrategy&) = delete;
  ShardStrategy(ShardStrategy&&) = delete;
  ShardStrategy& operator=(ShardStrategy&&) = delete;

  /// The dtypes in which parameters are stored. master: f32, or f64 if computing in f64; gradient:
  /// likewise, or bf16 if computing in that.
  struct DTypes {
    DType master;
    DType compute;
    DType gradient;
  };
  /// Setup, first: takes memory for masters, values and, if `gradients` is given, gradients of the
  /// trained parameters and for the values of frozen ones; binds all views. The store must outlive
  /// the strategy.
  void allocate(param::ParamStore& store, Arena& parameters, Arena* gradients,
                const DTypes& dtypes);
  /// Setup, second, if gradients were taken. The mesh, whose groups they are summed over, must
  /// outlive the strategy.
  void connect(const mesh::Mesh& mesh);

  /// Before the first pass of a step.
  virtual void begin_step();
  /// Before forward of `unit` is enqueued on ctx: its values come from the last update.
  void before_forward(Context& ctx, int unit);
  /// True if before_forward may have to wait; if not, it need not be called for each unit.
  [[nodiscard]] bool waits_before_forward() const { return overlaps_updates_ || gathers(); }
  /// True if updated values are gathered from other ranks.
  [[nodiscard]] virtual bool gathers() const { return false; }
  /// Before anything enqueued on ctx writes gradients of `unit` in a microbatch.
  virtual void before_backward(Context& /*ctx*/, int /*unit*/, int /*microbatch*/) {}
  /// Backward of `unit` (and of all later ones of its chunk) is enqueued, in the order in which
  /// units end; `last`: in the last microbatch. Starts the reductions that became ready.
  void gradients_ready(Context& ctx, int unit, int microbatch, bool last);
  /// True if gradients_ready with these arguments would start something.
  [[nodiscard]] bool closes(int unit, bool last) const;
  /// True if gradients are summed over other ranks, or kept in shards.
  [[nodiscard]] virtual bool reduces() const;
  /// True if gradients are summed in every microbatch, and so are never added up in place.
  [[nodiscard]] virtual bool reduces_every_microbatch() const { return false; }
  /// Lets reductions in progress advance; called between units.
  void progress();
  /// Makes work that is enqueued on ctx after this call see reduced gradients.
  virtual void finish(Context& ctx);
  /// After finish(), once all ranks have arrived here: moves the time in which finish() waited for
  /// late ranks from Phase::reduce_exposed to Phase::wait. On the CPU only: on a GPU analysis/
  /// finds it by comparing the ranks of a data group.
  void report_waits(Context& ctx);

  /// The ranges that this rank updates, in the order of the next forward pass.
  [[nodiscard]] const std::vector<param::ElementRange>& updated_ranges() const { return ranges_; }
  /// Range `index` of updated_ranges() is updated on ctx.
  virtual void after_update(Context& /*ctx*/, std::size_t /*index*/) {}
  /// Setup, before allocate(): whether updates run beside the next forward pass. Range i then
  /// belongs to bucket i.
  void set_overlaps_updates(bool overlaps) { overlaps_updates_ = overlaps; }
  [[nodiscard]] bool overlaps_updates() const { return overlaps_updates_; }
  /// Range `index` is updated once `end` is complete; before_forward of its units waits for it.
  void update_ends(std::size_t index, Event end);
  /// Makes work that is enqueued on ctx after this call see all updates of this rank.
  void wait_for_updates(Context& ctx);
  /// Waits for all updates and after_update()'s work; collective over the data group.
  void wait_all(Context& ctx);
  /// wait_all(), and brings the values that no forward pass of training reads, as other ranks have
  /// sent their FP8 values alone. Collective over the data group.
  void complete_values(Context& ctx);
  /// Masters were filled from outside: makes the values of all data ranks follow. Collective over
  /// the data group.
  virtual void masters_changed(Context& ctx) = 0;

  /// The reduced gradients.
  [[nodiscard]] const param::StateView& gradients() const { return gradients_; }
  /// True if optimizer state has an entry for every element or for this rank's shards alone.
  [[nodiscard]] virtual bool shards_state() const = 0;
  /// Reduced gradients whose squares this rank adds to the norm, so that every element of the model
  /// counts once in the world.
  [[nodiscard]] const std::vector<View>& norm_views() const { return norm_views_; }

 protected:
  ShardStrategy() = default;
  using Bucket = param::Bucket;
  /// The ranges of each bucket that this rank updates, for updated_ranges().
  [[nodiscard]] virtual std::vector<param::ElementRange> find_ranges() const = 0;
  /// The part of before_forward that waits for the other ranks' values of bucket `index`.
  virtual void await_gather(Context& /*ctx*/, std::size_t /*index*/) {}
  /// The part of complete_values() after wait_all().
  virtual void gather_values(Context& /*ctx*/) {}
  /// Setup, once all parameters are bound: memory for FP8 values in place of values.
  virtual void allocate_fp8(param::ParamStore& /*store*/, Arena& /*parameters*/) {}
  struct GradientMemory {
    param::StateView reduced;     ///< memory behind gradients()
    std::vector<View> by_bucket;  ///< memory that backward writes to
  };
  [[nodiscard]] virtual GradientMemory take_gradients(Arena& arena, DType dtype) = 0;
  /// Starts the sum over the data group, which has several ranks.
  [[nodiscard]] virtual comm::Ticket start_sum(Context& ctx, const Bucket& bucket) = 0;
  /// The reduced gradients that start_sum leaves on this rank.
  [[nodiscard]] virtual View reduced(const Bucket& bucket) const = 0;

  [[nodiscard]] const param::ParamGroup& group() const { return *group_; }
  [[nodiscard]] const Bucket& bucket(std::size_t index) const { return group_->buckets()[index]; }
  [[nodiscard]] comm::Communicator& data() const { return *data_; }
  [[nodiscard]] comm::Communicator* tied() const { return mesh_->tied_group(); }
  /// The flat view by buckets.
  [[nodiscard]] std::vector<View> by_bucket(const View& flat) const;
  /// This rank's shard in the memory where backward writes.
  [[nodiscard]] View written_shard(const Bucket& bucket) const;
  /// Phase::reduce_exposed for the life of the result, if there are sums to wait for.
  [[nodiscard]] std::optional<Scope<Phase>> enter_exposed(Context& ctx) const;
  /// If the sums of a bucket are in progress: waits for the one over data, then sums over the other
  /// axes. To be called after enter_exposed().
  void wait_for_bucket(Context& ctx, std::size_t index);
  void note_arrival(Context& ctx) { data_point_ = arrivals_.arrive(ctx, data()); }

  struct State {
    comm::Ticket ticket = 0;       ///< sum over the data group; 0: none in progress
    comm::Ticket gather = 0;       ///< gather of updated values; 0: none in progress
    Event update = {};             ///< end of an update in progress; complete: none
    bool pending = false;          ///< closed, but its sums are not complete
    int microbatch = -1;           ///< the last one that wrote to it
    std::vector<View> key_values;  ///< parts that are summed over the key-value group
  };
  [[nodiscard]] State& state(std::size_t bucket) { return states_[bucket]; }
  [[nodiscard]] std::size_t buckets() const { return states_.size(); }
  /// Backward begins again: buckets close from the last to the first.
  void reopen_buckets() { next_bucket_ = static_cast<int>(states_.size()) - 1; }

 private:
  void find_key_values();
  void find_norm_views();
  void add_norm_view(const param::ElementRange& range);
  void close(Context& ctx, std::size_t index);
  static void sum(Context& ctx, comm::Communicator& group, View gradients);
  void await(Context& ctx, comm::Communicator& group, comm::Ticket ticket, Arrivals::Point point);

  param::ParamGroup* group_ = nullptr;
  bool overlaps_updates_ = false;
  std::vector<State> states_;  ///< by bucket
  int next_bucket_ = -1;       ///< the next to close
  param::StateView gradients_;
  std::vector<param::ElementRange> ranges_;
  const mesh::Mesh* mesh_ = nullptr;
  comm::Communicator* data_ = nullptr;  ///< the mesh's group along kGradients
  Arrivals arrivals_;
  Arrivals::Point data_point_ = 0;  ///< at which this rank waits for the data group
  std::vector<View> norm_views_;
  Dim norm_end_ = -1;  ///< index in gradients() after the newest norm view
};

/// Every data rank keeps and updates everything; gradients are all-reduced.
[[nodiscard]] std::unique_ptr<ShardStrategy> make_replicated();
/// The strategy of the deck's parallel.zero: 0, 1 or 2.
[[nodiscard]] std::unique_ptr<ShardStrategy> make_strategy(int zero);

}  // namespace hyperslab::sharding
