// SPDX-License-Identifier: Apache-2.0
// Records of steps that the device writes for the host, and the device's clock.
#pragma once

#include <array>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/ops/clock.hpp"
#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab::train {

/// StepState, sums and clock in device memory; results and times in memory that the device writes
/// and the host reads, two steps later and without a call.
class StepRecords : public DeviceTimer {
 public:
  /// `scratch` gives the device memory. dtype: of the sums.
  StepRecords(Context& ctx, Arena& scratch, DType dtype, const mesh::Mesh& mesh,
              const model::ModelSpec& model);

  [[nodiscard]] ops::StepState* state() const { return state_; }  ///< on the device
  /// Keeps the state of now for an update beside the next step, which changes the state itself.
  void keep_state_of_update() const;
  [[nodiscard]] const ops::StepState* state_of_update() const {  ///< on the device
    return static_cast<const ops::StepState*>(update_state_memory_.raw());
  }
  /// Begins a step on the device: its scalars, and all sums zero.
  void begin(const ops::StepInput& input) const;
  [[nodiscard]] View sums() const { return all_sums_.slice(0, ops::kSumCount); }
  /// (layers with experts of the whole model, experts): pairs of a token and an expert, by expert;
  /// absent without experts.
  [[nodiscard]] View loads() const { return loads_; }
  /// sums() and loads(), which are summed over the world together.
  [[nodiscard]] View all_sums() const { return all_sums_; }
  /// Before finalize_step: keeps the loads for the host.
  void publish_loads() const;
  /// The loads of a step not older than the ring, of all ranks; waits as result() does. Empty
  /// without experts.
  [[nodiscard]] std::vector<double> loads(std::int64_t step) const;
  [[nodiscard]] ops::StepResult* results() const {  ///< for the device
    return static_cast<ops::StepResult*>(results_.device_data());
  }
  /// The state as it is after everything enqueued so far; waits for it.
  [[nodiscard]] ops::StepState read_state() const;
  void write_state(const ops::StepState& state) const;
  /// Sums as doubles; waits for everything enqueued so far.
  [[nodiscard]] std::array<double, ops::kSumCount> read_sums() const;

  /// The result that finalize_step would record of the newest step if it were left out. Waits for
  /// the device.
  [[nodiscard]] ops::StepResult read_result() const;
  /// Records that result, in place of finalize_step; the state stays as it is.
  void leave_out() const;
  /// Before an earlier step is done again: forgets the records of later ones. Waits for the device.
  void forget_results() const;

  /// On a GPU time is read from its own timer from now on; `components` too.
  void start_clock(bool components);
  void charge(int slot) override;
  /// After the last op of a step.
  void publish_times();
  /// Forgets the time since the last mark, which belongs to no step.
  void restart_clock();

  /// Is done again and again while the host waits for a record.
  void set_idle_work(std::function<void()> work) { idle_work_ = std::move(work); }

  /// The result of a step not older than the ring; waits until the device has written it. On a GPU
  /// all of `host` but its step number comes from the device.
  [[nodiscard]] const ops::StepResult& result(std::int64_t step) const;
  [[nodiscard]] StepTimes times(std::int64_t step, const StepTimes& host) const;

 private:
  Context& ctx_;
  [[nodiscard]] View loads_slot(std::int64_t step) const;
  View all_sums_;
  View loads_;
  View state_memory_;
  View update_state_memory_;
  View clock_memory_;
  ops::StepState* state_ = nullptr;
  ops::DeviceClock* clock_ = nullptr;  ///< null if the host's clock is the device's
  PinnedBuffer results_;
  PinnedBuffer readings_;
  PinnedBuffer kept_loads_;
  std::function<void()> idle_work_;
};

}  // namespace hyperslab::train
