// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "hyperslab/pipeline/executor.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "hyperslab/train/config.hpp"
#include "hyperslab/train/snapshot.hpp"

namespace hyperslab::train {

class StepRecords;

/// The loss scale of fp16 at step 1; halved until gradients are finite.
inline constexpr float kFirstLossScale = 65536;

/// The state of a rank's share of a training between steps: parameters, optimizer state, and the
/// numbers of its checkpoints.
class TrainerState {
 public:
  /// They outlive the state.
  struct Parts {
    const Config& config;
    DType compute;
    Context& ctx;
    model::Stage& stage;
    sharding::Presence& presence;
    optim::Optimizer* optimizer;  ///< null if forward only
    pipeline::Executor& executor;
    StepRecords& records;
  };
  explicit TrainerState(const Parts& parts);

  /// Initial parameters, by (seed, name, global element index), and cleared moments.
  void initialize();
  /// After initialize() on every rank: brings what ranks that shard values hold for each other, and
  /// FP8 values of weights that data ranks gather. Collective over the data group.
  void share_initial_values();
  /// After load() and load_parameters() on every rank: brings values that were loaded in shards to
  /// all data ranks. Collective over the data group.
  void share_values();

  /// Waits for all transfers and updates of earlier steps that are in progress: work enqueued
  /// afterwards sees them. Collective.
  void wait_all();
  /// wait_all(), and brings the values that no forward pass of training reads: to be called before
  /// anything else reads values. Collective.
  void complete_values();
  /// Makes work that is enqueued after this call wait until snapshot() has copied its values.
  void wait_for_snapshot();

  /// Everything a checkpoint needs of this rank, of a base nothing; every element of every tensor
  /// is given by exactly one rank of the world, in equal shares over the data group. On the CPU
  /// slabs are views of the trainer's memory, to be used before the next step; of a GPU's they own
  /// copies on the host.
  [[nodiscard]] std::vector<io::Slab> slabs();
  /// slabs() in place, on the device as well. fetch() copies a part of it to the host.
  [[nodiscard]] std::vector<io::Slab> slabs_in_place();
  [[nodiscard]] std::vector<io::Slab> fetch(std::span<const io::Slab> slabs);
  /// The bytes of slabs() in a SnapshotBuffer, each rounded up to a whole slot.
  [[nodiscard]] std::size_t checkpoint_bytes() const;
  /// slabs() as they are after the newest step, copied beside the next one: its update waits until
  /// they are.
  [[nodiscard]] Snapshot snapshot(SnapshotBuffer& buffer);
  /// The reduced gradients of the newest step, as "gradient/<name>", in the same way.
  [[nodiscard]] std::vector<io::Slab> gradient_slabs();
  void fill_meta(io::CheckpointMeta& meta) const;
  /// Loads parameters and, if training, moments and state. With adapters: the adapters alone.
  void load(const io::CheckpointReader& reader);
  /// Loads parameters alone; moments and state stay as initialize() made them. With adapters: the
  /// base's alone.
  void load_parameters(const io::CheckpointReader& reader);
  /// The base that adapters are added to: io::parameter_fingerprint and the step of its checkpoint;
  /// random weights until another is set.
  void set_base(std::uint64_t fingerprint, std::int64_t step) {
    base_fingerprint_ = fingerprint;
    base_step_ = step;
  }
  [[nodiscard]] std::uint64_t base_fingerprint() const { return base_fingerprint_; }

  /// With optimizer.ema_decay, between steps: exchanges the trained weights and their average, so
  /// that passes compute with it; a second call undoes the first, bit for bit. No step may come
  /// between. Collective over the data group.
  void exchange_averages();
  [[nodiscard]] bool averages() const {
    return parts_.optimizer != nullptr && parts_.optimizer->average();
  }
  /// Waits for everything enqueued on the compute stream so far.
  [[nodiscard]] ops::StepState step_state() const;

  /// Numbers for the bits of what this rank holds as others do.
  struct ReplicaSums {
    /// Held by every rank of its data group: values of all parameters, and masters, that are not
    /// sharded.
    std::uint64_t whole = 0;
    /// Held by the ranks along Axis::replica: sharded masters and values.
    std::uint64_t shards = 0;
    /// The sum of experts' values, which the ranks along mesh::kExpertGradients hold alike.
    std::uint64_t experts = 0;
    friend bool operator==(const ReplicaSums&, const ReplicaSums&) = default;
  };
  /// Waits for the device and copies to the host in pieces. Collective over the data group.
  [[nodiscard]] ReplicaSums replica_sums();

 private:
  struct Stored;  ///< a buffer that checkpoints hold
  void wait_for_updates();
  [[nodiscard]] std::vector<Stored> own_parameters() const;
  [[nodiscard]] std::vector<Stored> initial_parameters() const;
  [[nodiscard]] std::vector<Stored> stored(bool with_averages = true) const;
  [[nodiscard]] std::vector<io::Slab> views_of(const std::vector<Stored>& all);
  void read(const io::CheckpointReader& reader, const std::vector<Stored>& all);
  [[nodiscard]] DType rounds_first() const;
  void restart_averages();

  Parts parts_;
  Event snapshot_ready_;  ///< until then the update must not change the copied values
  std::uint64_t base_fingerprint_;
  std::int64_t base_step_ = 0;
};

}  // namespace hyperslab::train
