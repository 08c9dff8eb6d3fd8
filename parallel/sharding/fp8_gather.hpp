// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/layout/movement.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::sharding {

/// Gathers of the matrices that multiply in 8-bit floats with a scale a tensor
/// (param::KeptFp8). Data ranks agree on the amax of each, round their updated shards and
/// gather the FP8 values: half the bytes of 16-bit values. The rest of their buckets, such as norms
/// and biases, is gathered as values: each rank's as many bytes as the rank that has most of it.
/// Gathering all values and rounding them then gives the same bits.
class Fp8Gather {
 public:
  /// Setup, once `store` is bound: takes memory for the FP8 values of all matrices that ask for it.
  Fp8Gather(param::ParamStore& store, Arena& arena);

  /// True if the bucket has such matrices.
  [[nodiscard]] bool covers(std::size_t bucket) const { return !parts_[bucket].matrices.empty(); }
  /// The steps of a bucket in start() and await().
  [[nodiscard]] std::vector<layout::Step> steps(std::size_t bucket) const;
  /// This rank's shard of the bucket is updated on ctx: starts to agree on amaxes, and rounds
  /// and sends the bucket before, so that neither waits for a gather. To be called for all buckets
  /// with matrices in their order; the last one is sent at once.
  void start(Context& ctx, comm::Communicator& data, std::size_t bucket);
  /// Makes work that is enqueued on ctx after this call see all FP8 values of the bucket, and all
  /// of its values but the matrices'.
  void await(Context& ctx, comm::Communicator& data, std::size_t bucket);
  /// After await() of all buckets: work enqueued on ctx after this call sees the values of
  /// matrices, too. Collective over the data group.
  void gather_values(Context& ctx, comm::Communicator& data);

 private:
  /// Elements of a bucket, counted from its begin.
  struct Range {
    Dim begin = 0;
    Dim size = 0;
    [[nodiscard]] Range within(const Range& other) const;
  };
  /// The parts of a bucket.
  struct Part {
    std::vector<Range> matrices;
    View values;                           ///< (elements) u8
    View amax, scales;                     ///< f32, one number for each matrix
    std::vector<std::vector<Range>> rest;  ///< by rank: its shard without the matrices
    View packed;                           ///< (ranks, elements): the values of each rank's rest
    comm::Ticket amaxes = 0;               ///< all-reduce of `amax`; 0: none in progress
    comm::Ticket fp8_gather = 0;           ///< all-gather of `values`, likewise
    comm::Ticket rest_gather = 0;          ///< all-gather of `packed`, likewise
    bool lacks_values = false;             ///< other ranks' shards lack the matrices' values
  };
  [[nodiscard]] Range shard(std::size_t bucket, int rank) const;
  [[nodiscard]] View values(std::size_t bucket) const;
  void find_rest(std::size_t bucket);
  void find_amaxes(Context& ctx, comm::Communicator& data, std::size_t bucket);
  void round_shard(Context& ctx, comm::Communicator& data, std::size_t bucket);
  void send(Context& ctx, comm::Communicator& data, std::size_t bucket);
  /// Visits the rest of a rank's shard: every range of values, and where it lies packed.
  void for_rest(std::size_t bucket, int rank, auto&& visit) const;

  const param::ParamGroup& group_;
  std::vector<Part> parts_;            ///< by bucket
  std::size_t last_ = 0;               ///< last bucket that has matrices
  std::optional<std::size_t> unsent_;  ///< bucket whose amaxes are in progress
};

}  // namespace hyperslab::sharding
