// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "fp8_gather.hpp"
#include "hyperslab/sharding/strategy.hpp"

namespace hyperslab::sharding {

/// zero 0.
class Replicated final : public ShardStrategy {
 public:
  [[nodiscard]] std::vector<param::ElementRange> find_ranges() const override;
  void masters_changed(Context& ctx) override;
  [[nodiscard]] bool shards_state() const override { return false; }

 private:
  [[nodiscard]] GradientMemory take_gradients(Arena& arena, DType dtype) override;
  [[nodiscard]] comm::Ticket start_sum(Context& ctx, const Bucket& bucket) override;
  [[nodiscard]] View reduced(const Bucket& bucket) const override;
};

/// zero 1: gradients are reduce-scattered in place, every rank updates its shard of each
/// bucket, and updated values, or FP8 values of matrices, are all-gathered while the next forward
/// pass already runs.
class ShardedState : public ShardStrategy {
 public:
  [[nodiscard]] bool gathers() const override { return data().size() > 1; }
  [[nodiscard]] std::vector<param::ElementRange> find_ranges() const override;
  void after_update(Context& ctx, std::size_t index) override;
  void masters_changed(Context& ctx) override;
  [[nodiscard]] bool shards_state() const override { return true; }

 protected:
  [[nodiscard]] GradientMemory take_gradients(Arena& arena, DType dtype) override;
  [[nodiscard]] comm::Ticket start_sum(Context& ctx, const Bucket& bucket) override;
  [[nodiscard]] View reduced(const Bucket& bucket) const override { return written_shard(bucket); }

 private:
  void await_gather(Context& ctx, std::size_t index) override;
  void gather_values(Context& ctx) override;
  void allocate_fp8(param::ParamStore& store, Arena& parameters) override;
  std::optional<Fp8Gather> fp8_;  ///< if matrices ask for it
};

/// zero 2: backward writes the gradients of a bucket into one of two buffers; every microbatch they
/// are reduce-scattered and added to the rank's shards. A bucket that stays open from
/// the head to the embedding, as a tied table's does, has a buffer of its own.
class ShardedGradients final : public ShardedState {
 public:
  void begin_step() override;
  void before_backward(Context& ctx, int unit, int microbatch) override;
  [[nodiscard]] bool reduces() const override { return true; }
  [[nodiscard]] bool reduces_every_microbatch() const override { return true; }
  void finish(Context& ctx) override;

 private:
  [[nodiscard]] GradientMemory take_gradients(Arena& arena, DType dtype) override;
  /// If the sums of a bucket are in progress: waits for them and adds this rank's shard to the
  /// gradients that it keeps.
  void keep(Context& ctx, std::size_t index);
  [[nodiscard]] bool share_memory(const Bucket& a, const Bucket& b) const;
  int microbatch_ = -1;
};

}  // namespace hyperslab::sharding
