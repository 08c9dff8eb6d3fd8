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
/// start() begins to agree on amaxes, and rounds and sends the bucket before, so that neither waits
/// for a gather; the last bucket is sent at once. wait() brings the FP8 values and the rest,
/// complete() the values of matrices.
class Fp8Gather final : public ValueGather {
 public:
  /// Elements of the bucket, counted from its begin.
  struct Range {
    Dim begin = 0;
    Dim size = 0;
    [[nodiscard]] Range within(const Range& other) const;
  };

  /// Setup, once the group is bound: takes memory for the FP8 values. `before`: the gather of the
  /// bucket before this one that has matrices, or null. matrices: in the order of the bucket.
  Fp8Gather(const param::ParamGroup& group, const param::Bucket& bucket, Fp8Gather* before,
            const std::vector<param::KeptFp8*>& matrices, Arena& arena);
  void connect(const mesh::Mesh& mesh) override { data_ = &mesh.group(mesh::kShards); }
  [[nodiscard]] std::span<const layout::Step> steps() const override { return steps_; }
  void start(Context& ctx) override;
  void wait(Context& ctx) override;
  void complete(Context& ctx) override;

 private:
  [[nodiscard]] Range shard(int rank) const { return {rank * shard_size_, shard_size_}; }
  void find_rest(int ranks);
  void find_steps(const mesh::Position& at);
  void find_amaxes(Context& ctx);
  void round_shard(Context& ctx);
  void send(Context& ctx);
  /// Visits the rest of a rank's shard: every range of values, and where it lies packed.
  void for_rest(int rank, auto&& visit) const;

  View values_;  ///< the whole bucket's
  Dim shard_size_;
  int rank_;  ///< among those of kShards
  Fp8Gather* before_;
  bool is_last_ = true;
  std::vector<Range> matrices_;
  View fp8_;                              ///< (elements) u8
  View amax_, scales_;                    ///< f32, one number for each matrix
  std::vector<std::vector<Range>> rest_;  ///< by rank: its shard without the matrices
  View packed_;                           ///< (ranks, elements): the values of each rank's rest
  std::vector<layout::Step> steps_;

  comm::Communicator* data_ = nullptr;
  comm::Ticket amaxes_ = 0;       ///< all-reduce of `amax_`; 0: none in progress
  comm::Ticket fp8_gather_ = 0;   ///< all-gather of `fp8_`, likewise
  comm::Ticket rest_gather_ = 0;  ///< all-gather of `packed_`, likewise
  bool lacks_values_ = false;     ///< other ranks' shards lack the matrices' values
};

}  // namespace hyperslab::sharding
