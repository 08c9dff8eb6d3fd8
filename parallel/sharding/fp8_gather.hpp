// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/param/store.hpp"
#include "value_gather.hpp"

namespace hyperslab::sharding {

/// Gathers a bucket with matrices that multiply in 8-bit floats with a scale a tensor
/// (param::KeptFp8). Data ranks agree on the amax of each, round their updated shards and gather
/// the FP8 values: half the bytes of 16-bit values. The rest of the bucket, such as norms and
/// biases, is gathered as values: each rank's as many bytes as the rank that has most of it.
/// Gathering all values and rounding them then gives the same bits.
///
/// updated() begins to agree on amaxes, and rounds and sends the bucket before, so that neither
/// waits for a gather; the last bucket is sent at once. wait() brings the FP8 values and the rest,
/// complete() the values of matrices.
///
/// With a room for them, FP8 values are gathered by start(), for each pass. Whole values are
/// nowhere then: parameters of matrices have a shape alone, the others memory of their own.
class Fp8Gather final : public ValueGather {
 public:
  /// Elements of the bucket, counted from its begin.
  struct Range {
    Dim begin = 0;
    Dim size = 0;
    [[nodiscard]] Range within(const Range& other) const;
  };

  /// Setup, once the group is bound: takes memory, for the FP8 values unless they have a room: u8,
  /// of the bucket's size. `before`: the gather of the bucket with matrices before this one that is
  /// cut along the same axes, or null. matrices: in the order of the bucket.
  Fp8Gather(const param::ParamGroup& group, const param::Bucket& bucket, Fp8Gather* before,
            const std::vector<param::KeptFp8*>& matrices, View room, Arena& arena);
  void connect(const mesh::Mesh& mesh) override { data_ = &mesh.group(axes_); }
  [[nodiscard]] std::span<const layout::Step> steps() const override { return steps_; }
  [[nodiscard]] std::span<const layout::Step> update_steps() const override {
    return update_steps_;
  }
  void updated(Context& ctx) override;
  void start(Context& ctx) override;
  void wait(Context& ctx) override;
  void complete(Context& ctx) override;

 private:
  /// Elements beside the matrices, and where they begin among all of these.
  struct Rest {
    Range in_bucket;
    Dim begin = 0;
  };
  [[nodiscard]] Range shard(int rank) const { return {rank * shard_.numel(), shard_.numel()}; }
  [[nodiscard]] bool in_room() const { return !values_; }
  void bind(const std::vector<param::KeptFp8*>& matrices);
  void find_rest(int ranks);
  /// With a room: the views of parameters, of which the matrices have no memory.
  void bind_params(const param::ParamGroup& group, const param::Bucket& bucket, Arena& arena);
  void find_steps(const mesh::Position& at);
  void find_amaxes(Context& ctx);
  void round_shard(Context& ctx);
  void send(Context& ctx);
  /// Visits the rest of a rank's shard: every range, and where it lies packed.
  void for_rest(int rank, auto&& visit) const;

  View values_;         ///< the whole bucket's; absent with a room
  View shard_;          ///< this rank's values
  mesh::AxisSet axes_;  ///< axes that cut the bucket
  int rank_;            ///< along them
  Fp8Gather* before_;
  bool is_last_ = true;
  std::vector<Range> matrices_;
  View fp8_;                             ///< (elements) u8
  View fp8_shard_;                       ///< this rank's: with a room outside of it
  View amax_, scales_;                   ///< f32, one number for each matrix
  std::vector<std::vector<Rest>> rest_;  ///< by rank
  View packed_;                          ///< (ranks, elements): the values of each rank's rest
  View rest_values_;                     ///< with a room: those of all ranks
  std::vector<layout::Step> steps_;
  std::vector<layout::Step> update_steps_;

  comm::Communicator* data_ = nullptr;
  comm::Ticket amaxes_ = 0;       ///< all-reduce of `amax_`; 0: none in progress
  comm::Ticket fp8_gather_ = 0;   ///< all-gather of `fp8_`, likewise
  comm::Ticket rest_gather_ = 0;  ///< all-gather of `packed_`, likewise
  Event rounded_;                 ///< with a room: this rank's FP8 values are there
  bool lacks_values_ = false;     ///< other ranks' shards lack the matrices' values
};

}  // namespace hyperslab::sharding
