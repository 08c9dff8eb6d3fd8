// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/nn/param.hpp"
#include "hyperslab/sharding/arrivals.hpp"

namespace hyperslab::dp {

/// Over whom gradients are summed, and what this rank counts of their norm.
struct GradientGroups {
  comm::Communicator* data = nullptr;
  comm::Communicator* tensor = nullptr;
  comm::Communicator* key_value = nullptr;  ///< null: every rank has key-value heads of its own
  comm::Communicator* tied = nullptr;       ///< null: both ends of the tied table are here
  bool counts_tied = true;                  ///< one of the two ends counts the tied table's norm
};

/// Sums gradients while backward still runs. A bucket starts as soon as the backward passes of all
/// its units are enqueued: with zero 0 and 1 in the last microbatch of a step, with zero 2 in every
/// microbatch. By kind and parameter it is summed
/// - over the ranks with the same key-value heads;
/// - over the data group: all-reduced with zero 0, else reduced to this rank's shard;
/// - then over the tensor group, where ranks saw only their rows (BucketKind::summed), and over the
///   two ends of a tied table, so that all of them have equal bits.
/// Copies that several tensor ranks hold (BucketKind::equal, shared key-value heads) go through
/// data groups of their own: they have equal bits where those groups add in one order, as MPI does.
class GradientReducer {
 public:
  GradientReducer(const nn::ParamTable& params, const GradientGroups& groups);

  /// Before the first pass of a step.
  void begin_step();
  /// Before anything writes gradients of `unit` in a microbatch: with zero 2 frees and clears the
  /// buffer they go to.
  void before_unit(Context& ctx, int unit, int microbatch);
  /// Backward of `unit` (and of all later ones of its chunk) is enqueued, in the order in which
  /// units end; `last`: in the last microbatch. Starts what became ready.
  void unit_done(Context& ctx, int unit, int microbatch, bool last);
  /// Whether there is anyone to sum over, or anything to keep.
  [[nodiscard]] bool is_needed() const;
  /// Whether unit_done with these arguments would start something.
  [[nodiscard]] bool closes(int unit, bool last) const;
  /// Whether gradients are summed in every microbatch, and so are never added up in place.
  [[nodiscard]] bool every_microbatch() const { return zero_ == 2; }
  /// Lets reductions under way advance; called between units.
  void progress();
  /// What is enqueued on ctx after this call sees reduced gradients.
  void finish(Context& ctx);
  /// After finish(), once all ranks have come this far: the time in which it waited for ranks that
  /// had not yet come to it goes from Phase::reduce_exposed to Phase::wait. On the CPU alone: on a
  /// GPU a late rank shows in what the others have beyond the least exposed of their data group.
  void tell_waits(Context& ctx);

  /// Reduced gradients whose squares this rank adds to the norm, so that every element of the model
  /// counts once in the world.
  [[nodiscard]] const std::vector<View>& norm_views() const { return norm_views_; }

 private:
  struct State {
    comm::Ticket ticket = 0;
    bool pending = false;          ///< its sums are not yet where they belong
    int microbatch = -1;           ///< the last one that wrote to it
    std::vector<View> key_values;  ///< parts that are summed over the key-value group
  };
  [[nodiscard]] const nn::Bucket& bucket(std::size_t index) const {
    return params_.buckets()[index];
  }
  [[nodiscard]] View shard(const nn::Bucket& bucket) const;
  void find_key_values();
  void find_norm_views();
  void add_norm_view(Dim begin, Dim end);
  [[nodiscard]] bool counts(const nn::Bucket& bucket) const;
  void close(Context& ctx, std::size_t index);
  void wait_for_bucket(Context& ctx, std::size_t index);
  [[nodiscard]] bool share_memory(const nn::Bucket& a, const nn::Bucket& b) const;
  static void sum(Context& ctx, comm::Communicator& group, View gradients);
  void await(Context& ctx, comm::Communicator& group, comm::Ticket ticket, Arrivals::Point point);

  const nn::ParamTable& params_;
  GradientGroups groups_;
  Arrivals arrivals_;
  Arrivals::Point data_point_ = 0;  ///< at which this rank waits for the data group
  int zero_;
  int next_bucket_ = -1;  ///< counts down; buckets close from the last to the first
  int microbatch_ = -1;
  std::vector<State> states_;
  std::vector<View> norm_views_;
  Dim norm_end_ = -1;  ///< flat element behind the newest norm view
};

/// Brings the parameters that data ranks updated in shards to all of them, bucket by bucket, while
/// the next forward pass already runs.
class ParameterGather {
 public:
  ParameterGather(const nn::ParamTable& params, comm::Communicator& data);

  /// The shard of this bucket is updated on ctx; starts the all-gather of its values.
  void start(Context& ctx, std::size_t bucket);
  /// What is enqueued on ctx after this call sees the values of `unit`.
  void wait_for(Context& ctx, int unit);
  void finish(Context& ctx);
  [[nodiscard]] bool is_needed() const { return params_.sharding().zero > 0 && data_.size() > 1; }

 private:
  void wait(Context& ctx, std::size_t bucket);
  const nn::ParamTable& params_;
  comm::Communicator& data_;
  std::vector<comm::Ticket> tickets_;
  int under_way_ = 0;
};

}  // namespace hyperslab::dp
