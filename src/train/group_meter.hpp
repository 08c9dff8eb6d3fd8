// SPDX-License-Identifier: Apache-2.0
// Traffic of each group of a rank in a step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hyperslab/io/timing.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab::train {

/// Takes the traffic of a mesh's communicators between the begin and the end of each step. Traffic
/// between two steps (evaluation, checkpoints) is in none. Allocates nothing in a step.
class GroupMeter {
 public:
  /// The mesh must outlive the meter.
  explicit GroupMeter(const mesh::Mesh& mesh);
  ~GroupMeter();
  GroupMeter(const GroupMeter&) = delete;
  GroupMeter& operator=(const GroupMeter&) = delete;
  GroupMeter(GroupMeter&&) = delete;
  GroupMeter& operator=(GroupMeter&&) = delete;

  /// GPUs: see Communicator::record_operations. The recorder must outlive the meter.
  void record_operations(Recorder& recorder);
  void begin_step();
  /// Takes the seconds that devices have reported so far. Between two steps: they belong to
  /// neither.
  void collect();
  /// Calls collect(), and keeps the traffic since begin_step().
  void end_step(std::int64_t step);
  /// The traffic of a step that the ring of results still holds, in the order of groups().
  [[nodiscard]] const io::GroupTraffics& of(std::int64_t step) const {
    return steps_[static_cast<std::size_t>(step % ops::kResultRing)];
  }
  [[nodiscard]] std::vector<io::GroupInfo> groups() const;

 private:
  /// Since the communicator was made. arrival_seconds: the sum of the moments of calls.
  struct Total {
    io::GroupTraffic traffic;
    std::int64_t stamped = 0;
  };
  using Totals = std::array<Total, io::kMostGroups>;
  [[nodiscard]] Totals totals() const;

  const mesh::Mesh& mesh_;
  std::vector<comm::Communicator*> groups_;  ///< the data group first
  Totals begin_{};
  double synchronized_ = 0;  ///< when this rank left the newest operation of all ranks; 0: none yet
  std::array<io::GroupTraffics, ops::kResultRing> steps_{};
};

}  // namespace hyperslab::train
