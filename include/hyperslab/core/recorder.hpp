// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/nvtx.hpp"

namespace hyperslab {

/// The kinds of work in a step. Phases partition the step: entering an inner phase pauses the outer
/// one, so their seconds add up to the step.
enum class Phase : std::uint8_t {
  other,
  data,
  forward,
  backward,
  optimizer,
  reduce_exposed,  ///< waiting for reductions of gradients that are in progress
  tensor_comm,
  context_comm,  ///< waiting for other tokens of the same samples
  expert_comm,   ///< waiting for tokens on their way to experts and back
  pipeline_comm,
  pipeline_idle,
  wait,  ///< for slower ranks, outside the tensor, context, expert and pipeline groups
  checkpoint,
};
inline constexpr int kPhases = 13;

/// The part of the program that work belongs to, for `bench --components` and traces. A module
/// names its own parts in its component.hpp; no two have the same index.
struct Component {
  std::uint8_t index = 0;           ///< below kMaxComponents
  std::string_view name = "other";  ///< a literal
  bool operator==(const Component& other) const = default;
};
inline constexpr int kMaxComponents = 16;

[[nodiscard]] std::string_view name_of(Phase phase);

/// Seconds on the monotonic clock.
[[nodiscard]] double now_seconds();

/// An interval on a traced step, in seconds since the step began.
struct TraceEvent {
  std::string_view name;  ///< a literal
  std::string_view stream;
  int microbatch = -1;
  double start_seconds = 0;
  double end_seconds = 0;
};

/// An operation of a group on a traced step, in seconds since it began; on a GPU NaN until found by
/// the profiler. The call stamps the end of the computation before it: operations of a group that
/// have one ticket began when its last member called. A call of an earlier step is before 0.
struct TraceOperation {
  std::string_view group;      ///< a literal
  std::string_view operation;  ///< a literal
  std::uint64_t ticket = 0;    ///< for a collective, equal on all members
  std::int64_t bytes = 0;
  int microbatch = -1;
  double call_seconds = 0;
  double wait_seconds = 0;  ///< when this rank began to wait for it
  double end_seconds = 0;
};

/// One message of an exchange on a traced step. Messages from one member to another match in the
/// order of their calls.
struct TraceMessage {
  std::string_view group;    ///< a literal
  std::uint64_t ticket = 0;  ///< ticket of the exchange
  bool sends = false;
  int peer = 0;  ///< member of the group
  std::int64_t bytes = 0;
};

/// The times of one step on this rank.
struct StepTimes {
  std::int64_t step = 0;
  double step_seconds = 0;
  std::array<double, kPhases> phase_seconds{};
  std::array<double, kMaxComponents> component_seconds{};
  double reduce_seconds = 0;       ///< start of the first to end of the last, per reduction, summed
  double reduce_busy_seconds = 0;  ///< with at least one reduction in progress
  [[nodiscard]] double phase(Phase p) const { return phase_seconds[static_cast<std::size_t>(p)]; }
  [[nodiscard]] double component(const Component& c) const { return component_seconds[c.index]; }
  /// Moves `seconds` of one phase to another, at most the time that the first one has.
  void move(Phase from, Phase to, double seconds);
  /// Only time with a reduction in progress can be exposed: the part of reduce_exposed beyond
  /// reduce_busy_seconds goes to wait.
  void bound_exposed();
};

/// Takes the recorder's charges if time passes on a device: the time since the last charge of
/// the same kind belongs to `slot` (the phases, then the components by index).
class DeviceTimer {
 public:
  DeviceTimer() = default;
  virtual ~DeviceTimer() = default;
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  DeviceTimer(DeviceTimer&&) = delete;
  DeviceTimer& operator=(DeviceTimer&&) = delete;
  virtual void charge(int slot) = 0;
};

/// Sees every op of a context begin and end, on the CPU and as the host of a GPU enqueues it; ops
/// that an op calls are part of it.
class OpObserver {
 public:
  OpObserver() = default;
  virtual ~OpObserver() = default;
  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;
  OpObserver(OpObserver&&) = delete;
  OpObserver& operator=(OpObserver&&) = delete;
  virtual void begin(std::string_view op) = 0;  ///< a literal
  virtual void end() = 0;
  /// Number of the op that is in progress, counted from 0; -1: none, or they are not counted.
  [[nodiscard]] virtual std::int64_t number() const { return -1; }
};

/// Stamps of the current step. Everyone may record; only io/timing writes to disk. Fixed storage:
/// recording allocates nothing. On the CPU a stamp is the monotonic clock; a CUDA context stamps
/// through its device ring.
class Recorder {
 public:
  /// `trace_capacity`: events of a traced step that are kept, and as many operations and messages.
  explicit Recorder(std::size_t trace_capacity = 1 << 16);

  /// From now on charges go to `timer` (charges of components only if asked for: a mark costs the
  /// device some microseconds), and end_step gives host times without phases.
  void use_timer(DeviceTimer* timer, bool components) {
    timer_ = timer;
    timer_components_ = components;
  }
  /// From now on steps, phases and microbatches are noted there, too; null: nowhere.
  void set_activity(Activity* activity) { activity_ = activity; }
  [[nodiscard]] Activity* activity() const { return activity_; }
  /// From now on it sees the ops of the CPU; null: no one does.
  void set_op_observer(OpObserver* observer) { op_observer_ = observer; }
  [[nodiscard]] OpObserver* op_observer() const { return op_observer_; }

  void begin_step(std::int64_t step, bool traced);
  /// Closes the step and returns its times; events() stays valid until the next begin_step.
  const StepTimes& end_step();

  void enter(Phase phase);
  void leave_phase();
  void enter(const Component& component);
  void leave_component();
  void set_microbatch(int microbatch) {
    microbatch_ = microbatch;
    if (activity_ != nullptr) {
      activity_->microbatch.store(microbatch, std::memory_order_relaxed);
    }
  }
  /// A finished asynchronous reduction, counted in reduce_seconds and reduce_busy_seconds; in any
  /// order.
  void add_reduction(double start_seconds, double end_seconds);
  /// Moves seconds of this step from one phase to another. Does nothing if a timer takes the
  /// charges.
  void move(Phase from, Phase to, double seconds) { times_.move(from, to, seconds); }
  void add_event(std::string_view name, std::string_view stream, double start, double end);
  [[nodiscard]] int microbatch() const { return microbatch_; }
  /// Records an operation of a traced step; does nothing in other steps. Times are on the monotonic
  /// clock; `microbatch` is set here.
  void add_operation(const TraceOperation& operation);
  void add_message(const TraceMessage& message);

  [[nodiscard]] Phase phase() const { return phases_[static_cast<std::size_t>(phase_depth_)]; }
  [[nodiscard]] const Component& component() const {
    return components_[static_cast<std::size_t>(component_depth_)];
  }
  [[nodiscard]] bool traced() const { return traced_; }
  /// True if labels are NVTX ranges, too; see nvtx::enabled.
  [[nodiscard]] bool has_ranges() const { return has_ranges_; }
  [[nodiscard]] std::int64_t step() const { return times_.step; }
  [[nodiscard]] double step_start() const { return step_start_; }
  [[nodiscard]] const std::vector<TraceEvent>& events() const { return events_; }
  [[nodiscard]] const std::vector<TraceOperation>& operations() const { return operations_; }
  [[nodiscard]] const std::vector<TraceMessage>& messages() const { return messages_; }
  /// Events, operations and messages of a traced step beyond the capacity.
  [[nodiscard]] std::int64_t lost() const { return lost_; }

 private:
  static constexpr int kMaxDepth = 8;
  void charge_phase(double now);
  void charge_component(double now);
  void cover(double start, double end);
  template <class Record>
  void keep(std::vector<Record>& records, const Record& record);

  std::array<Phase, kMaxDepth> phases_{};
  std::array<double, kMaxDepth> phase_entered_{};
  std::array<Component, kMaxDepth> components_{};
  std::array<double, kMaxDepth> component_entered_{};
  int phase_depth_ = 0;
  int component_depth_ = 0;
  double phase_mark_ = 0;
  double component_mark_ = 0;
  double step_start_ = 0;
  int microbatch_ = -1;
  bool traced_ = false;
  bool timer_components_ = false;
  bool has_ranges_ = nvtx::enabled();
  DeviceTimer* timer_ = nullptr;
  Activity* activity_ = nullptr;
  OpObserver* op_observer_ = nullptr;
  struct Interval {
    double start = 0;
    double end = 0;
  };
  StepTimes times_;
  std::vector<Interval> reducing_;  ///< apart from each other, ascending
  double counted_until_ = 0;        ///< times before it are in reduce_busy_seconds
  std::vector<TraceEvent> events_;
  std::vector<TraceOperation> operations_;
  std::vector<TraceMessage> messages_;
  std::int64_t lost_ = 0;
};

/// Enters a phase or a component for the life of the object.
template <class Label>
class Scope {
 public:
  Scope(Recorder& recorder, Label label) : recorder_(recorder) { recorder_.enter(label); }
  ~Scope() {
    if constexpr (std::is_same_v<Label, Phase>) {
      recorder_.leave_phase();
    } else {
      recorder_.leave_component();
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  Scope(Scope&&) = delete;
  Scope& operator=(Scope&&) = delete;

 private:
  Recorder& recorder_;
};

}  // namespace hyperslab
