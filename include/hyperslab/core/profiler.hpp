// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/core/context.hpp"

namespace hyperslab {

/// Kinds of the host's calls to CUDA. A step should make no allocation and no synchronization.
enum class CallKind : std::uint8_t {
  other,
  allocation,       ///< takes, registers or gives back memory, or instantiates a graph
  synchronization,  ///< the host waits, also in a copy that is not asynchronous
  launch,           ///< starts a kernel
  graph_launch,
};
[[nodiscard]] std::string_view name_of(CallKind kind);
/// The kind of a function of CUDA's runtime or driver by its name, such as "cudaMalloc_v3020".
[[nodiscard]] CallKind kind_of_call(std::string_view name);

/// A kernel's name as C++ writes it, without return type, parameters and namespaces of our own.
[[nodiscard]] std::string readable_kernel(const std::string& name);

/// Calls of one function.
struct CallCount {
  std::string name;
  CallKind kind = CallKind::other;
  std::int64_t calls = 0;
};

/// One kernel in one phase.
struct KernelTime {
  std::string name;            ///< readable
  Phase phase = Phase::other;  ///< phase in which the host launched it
  std::int64_t calls = 0;
  double seconds = 0;                     ///< time on the device (OwnTime), all calls together
  std::vector<double> call_seconds = {};  ///< one for each call, in the order in which they ended
};

/// A kernel, a copy or a fill on the device.
struct DeviceEvent {
  std::string name;            ///< readable for a kernel; else "copy host to device", "fill", ...
  std::string stream;          ///< see name_stream; "stream 17" if it has no name
  Phase phase = Phase::other;  ///< in which the host enqueued it, with the next two
  std::string_view component = "other";
  int microbatch = -1;
  std::int64_t bytes = 0;       ///< size of a copy or fill
  std::int64_t operation = -1;  ///< communication: index in the recorder's operations(); else -1
  double begin_seconds = 0;     ///< for a kernel, see OwnTime
  double end_seconds = 0;       ///< both on the host's monotonic clock
};

/// Kernels of communication, and copies between devices, in time. The time in which nothing is on
/// the device before one of them counts as its own: streams wait for other members there.
struct CommunicationTime {
  double seconds = 0;          ///< with at least one of them on the device
  double exposed_seconds = 0;  ///< part of `seconds` with no other kernel beside them
};

/// When a kernel or a copy between devices was on the device.
struct KernelSpan {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  bool communicates = false;
};
/// `spans` in any order.
[[nodiscard]] CommunicationTime communication_time(std::vector<KernelSpan> spans);

/// The own time of kernels that were launched to wait beside the kernel before (programmatic
/// dependent launch), which are on the device while that one runs.
class OwnTime {
 public:
  /// Nanosecond from which the kernel has its stream alone: begin_ns, or a later end of the kernel
  /// before. Calls follow the ends of a stream's kernels; a kernel out of order keeps begin_ns.
  [[nodiscard]] std::uint64_t begin_ns(std::uint32_t stream, std::uint64_t begin_ns,
                                       std::uint64_t end_ns);

 private:
  std::map<std::uint32_t, std::uint64_t> ended_ns_;  ///< by stream
};

/// Sees calls of the host to CUDA and kernels on the device through CUPTI, which is opened at run
/// time: nothing else needs it. One at a time in a process; other profilers exclude it.
class Profiler {
 public:
  enum class Watch : std::uint8_t {
    calls,
    calls_and_kernels,
    timeline,  ///< these, and events()
  };
  /// Returns true if a kernel communicates, by its readable name.
  using IsCommunication = bool (*)(std::string_view kernel);

  /// Why there can be none here, with what to do; empty if CUPTI was opened. It may still refuse
  /// to work beside another profiler.
  [[nodiscard]] static std::string unavailable();

  /// `recorder` says in which phase a kernel is launched; only launches of the thread that makes
  /// the profiler are asked for. Without `communicates` no kernel counts as communication. Throws
  /// Error(device) if CUPTI is missing or refuses. A kernel launched before start() or inside a
  /// graph has no phase.
  Profiler(const Recorder& recorder, Watch watch, IsCommunication communicates = nullptr);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  Profiler(Profiler&&) = delete;
  Profiler& operator=(Profiler&&) = delete;

  void start();
  /// Kernels are counted that ended before this call: wait for the stream first.
  void stop();

  /// Since start(), by name. A call inside another call of CUDA does not count.
  [[nodiscard]] std::vector<CallCount> calls() const;
  /// Since start(), the longest first.
  [[nodiscard]] std::vector<KernelTime> kernels() const;
  [[nodiscard]] CommunicationTime communication() const;
  /// Since start(): kernels by the number that the recorder's observer gave to the op that launched
  /// them; those outside of ops are left out.
  struct OpKernels {
    std::int64_t calls = 0;
    double seconds = 0;  ///< sum over all calls
  };
  [[nodiscard]] std::map<std::int64_t, OpKernels> op_kernels() const;

  /// Work on the stream is reported by this name. A stream on which an operation of a group ran has
  /// the name of the group.
  void name_stream(const Stream& stream, std::string name);
  /// With Watch::timeline: all work that the device began and ended between start() and stop(), in
  /// order of its begin. Only in a traced step of the recorder do kernels of communication have
  /// operations.
  [[nodiscard]] std::vector<DeviceEvent> events() const;

  class Backend {
   public:
    Backend() = default;
    virtual ~Backend() = default;
    Backend(const Backend&) = delete;
    Backend& operator=(const Backend&) = delete;
    Backend(Backend&&) = delete;
    Backend& operator=(Backend&&) = delete;
    virtual void start() = 0;
    virtual void stop() = 0;
    [[nodiscard]] virtual std::vector<CallCount> calls() const = 0;
    [[nodiscard]] virtual std::vector<KernelTime> kernels() const = 0;
    [[nodiscard]] virtual CommunicationTime communication() const = 0;
    [[nodiscard]] virtual std::map<std::int64_t, OpKernels> op_kernels() const = 0;
    virtual void name_stream(CUstream_st* stream, std::string name) = 0;
    [[nodiscard]] virtual std::vector<DeviceEvent> events() const = 0;
  };

 private:
  std::unique_ptr<Backend> backend_;
};

/// Times of ops on the CPU, which run one after the other, as Profiler has them of kernels. The
/// recorder's observer for the life of the object.
class OpProfiler final : public OpObserver {
 public:
  explicit OpProfiler(Recorder& recorder);
  ~OpProfiler() override;
  OpProfiler(const OpProfiler&) = delete;
  OpProfiler& operator=(const OpProfiler&) = delete;
  OpProfiler(OpProfiler&&) = delete;
  OpProfiler& operator=(OpProfiler&&) = delete;

  void start() { running_ = true; }
  void stop() { running_ = false; }
  void begin(std::string_view op) override;
  void end() override;
  /// Times of ops that ended between start() and stop(), the longest first.
  [[nodiscard]] std::vector<KernelTime> ops() const;

 private:
  Recorder& recorder_;
  bool running_ = false;
  std::string_view op_;  ///< op that runs; empty: none
  double began_ = 0;
  std::map<std::pair<std::string_view, Phase>, KernelTime> times_;
};

/// Time between two points of a context's stream by CUDA events; on the CPU by the clock. All
/// events are made at once, and reading waits only in seconds().
class EventTimer {
 public:
  EventTimer(Context& ctx, int intervals);
  void begin();
  void end();
  /// Seconds of every interval that was ended. Waits for the stream.
  [[nodiscard]] std::vector<double> seconds() const;

 private:
  Context& ctx_;
  std::vector<std::shared_ptr<void>> events_;  ///< two an interval; empty on the CPU
  std::vector<double> times_;                  ///< two an interval, on the CPU
  std::size_t capacity_;
  std::size_t marks_ = 0;
  void mark();
};

/// Memory that can still be taken, and all there is: of the GPU in use, or of the host.
struct DeviceMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};
[[nodiscard]] DeviceMemory device_memory(Device device);

/// The part of a run that `nsys profile --capture-range=cudaProfilerApi` looks at; otherwise
/// nothing.
void start_capture_range();
void stop_capture_range();

}  // namespace hyperslab
