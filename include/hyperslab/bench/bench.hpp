// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/ops/kernel_class.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::bench {

enum class BenchMode : std::uint8_t { forward, forward_backward, step };

struct BenchOptions {
  BenchMode mode = BenchMode::step;
  int warmup = 5;
  int steps = 10;
  /// No warm-up; the first step holds the setup: plan building, memory, first calls.
  bool cold = false;
  /// Also time the parts of the model; on a GPU this turns graphs off.
  bool components = false;
  /// Also list the kernels of the measured steps, on a GPU with CUPTI, which turns graphs off; on
  /// the CPU its ops.
  bool kernels = false;
  /// Also run a step after the measured ones whose memory is reported over time; on a GPU its host
  /// waits for the device at every unit.
  bool memory_timeline = false;
  /// Name warm-up, measured steps, phases and layers for NVIDIA's profilers, and let them see the
  /// measured steps alone; this turns graphs off, whose replays have no ranges inside.
  bool ranges = false;
  /// Looks at communication and the share that computation hides, with graphs as in training.
  bool communication = false;
  plan::IsLegal is_legal;  ///< for advice if memory runs out
  [[nodiscard]] bool graphs() const { return !components && !kernels && !ranges; }
};

struct BenchComponent {
  std::string name;
  double seconds = 0;  ///< mean of a step
  /// FLOPs of a step, from the plan. A row softmax that is a pass of its own counts 5 a score that
  /// the mask keeps, and 4 backward.
  double flops = 0;
  double share = 0;           ///< share of the step's seconds
  double expected_share = 0;  ///< share of the step's FLOPs
  /// Inside attention; empty if one kernel does it all. They are counted in the component, too.
  std::vector<BenchComponent> parts;
  std::string fused;  ///< operations of this component that share kernels, for a table
};

/// Seconds of a step by every available clock, means over the measured steps; not a number
/// if there is none. The first rank's clocks.
struct BenchClocks {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double host = kNone;           ///< from end to end of steps as the host sees them
  double device = kNone;         ///< stamps of kernels in the stream
  double events = kNone;         ///< CUDA events around the step
  double cupti_kernels = kNone;  ///< sum over kernels; those that overlap count twice
};

/// Seconds of single calls or steps, put together.
struct CallFigures {
  double minimum = 0;
  double median = 0;
  double maximum = 0;
  double standard_deviation = 0;  ///< sample standard deviation, n - 1
};
/// `seconds`: at least one.
[[nodiscard]] CallFigures call_figures_of(std::span<const double> seconds);

/// One kernel, or op of the CPU, in all phases.
struct BenchKernel {
  std::string name;
  ops::KernelClass kernel_class = ops::KernelClass::other;
  std::int64_t calls = 0;  ///< in all measured steps
  double seconds = 0;      ///< in all measured steps
  CallFigures call;        ///< seconds of single calls
  std::array<std::int64_t, kPhases> phase_calls{};
  std::array<double, kPhases> phase_seconds{};
};

/// Kernels of the first rank, or its ops on the CPU.
struct BenchKernels {
  std::string unavailable;          ///< why there are none, if they were asked for
  int forwards = 0;                 ///< forward passes of a microbatch, in all measured steps
  CommunicationTime communication;  ///< in all measured steps, on this rank
  std::vector<BenchKernel> rows;    ///< the longest first; without phases if graphs ran
  [[nodiscard]] double seconds() const;
  [[nodiscard]] double seconds(Phase phase) const;
  /// Share of a class in all kernels, and in a phase's kernels.
  [[nodiscard]] double share(ops::KernelClass kernel_class) const;
  [[nodiscard]] double share(ops::KernelClass kernel_class, Phase phase) const;
  /// The kernel that takes longest in a phase; null if none ran in it.
  [[nodiscard]] const BenchKernel* top(Phase phase) const;
  /// Calls of a kernel in the forward pass of one microbatch.
  [[nodiscard]] double calls_per_forward(const BenchKernel& kernel) const;
};
/// Brings the phases of every kernel together. `class_of`: by its name.
using ClassOf = ops::KernelClass (*)(std::string_view name);
[[nodiscard]] BenchKernels summarize(const std::vector<KernelTime>& times, int forwards,
                                     ClassOf class_of = ops::class_of_kernel);

/// The dtypes in which a kind of tensor is stored and computed.
struct BenchDType {
  std::string what;
  std::string storage;
  std::string compute;
};
/// By the tensors that this rank holds.
[[nodiscard]] std::vector<BenchDType> dtypes_of(const train::Trainer& trainer,
                                                const train::Config& config);

/// The memory that a rank plans and, on a GPU, the memory that was seen in use.
struct BenchMemory {
  std::vector<std::pair<std::string, Allocation>> allocations;  ///< with the arena's name
  model::MemoryPlan plan;
  bool measured = false;          ///< on a GPU; otherwise the rest is zero
  std::size_t before_bytes = 0;   ///< in use on the GPU before the arenas: contexts, NCCL, others
  std::size_t library_bytes = 0;  ///< that cuBLASLt is given
  std::size_t device_bytes = 0;   ///< in use after the measured steps
  /// Lives of allocations in the step with memory_timeline, since it began; otherwise empty.
  std::vector<io::AllocationLife> lives;
  std::vector<train::MemoryTimeline::Span> spans;
  std::size_t residual_stream_bytes = 0;  ///< residual stream of one microbatch between two layers
  [[nodiscard]] std::size_t predicted_bytes() const {
    return before_bytes + library_bytes + plan.total();
  }
  /// Measured against predicted; 0.02: two percent more.
  [[nodiscard]] double difference() const {
    return static_cast<double>(device_bytes) / static_cast<double>(predicted_bytes()) - 1.0;
  }
};

/// Seconds of some steps, put together.
struct StepFigures {
  double mean = 0;
  double standard_deviation = 0;  ///< sample standard deviation, n - 1
  double median = 0;
};
/// `seconds`: at least one.
[[nodiscard]] StepFigures figures_of(std::span<const double> seconds);

/// Figures of the slowest rank if ranks differ.
struct BenchResult {
  std::vector<double> step_seconds;  ///< every measured step, the longest of all ranks
  double mean = 0;
  double standard_deviation = 0;  ///< sample standard deviation, n - 1
  double median = 0;
  double tokens = 0;       ///< tokens of a step, all ranks
  double model_flops = 0;  ///< FLOPs of a step, all ranks, causal
  double model_flops_full = 0;
  /// FLOP/s of all ranks together: on the CPU in an fp32 product of 2048 x 2048 x 2048, the median
  /// of one product after every measured step, so that both see the same machine; on a GPU its
  /// peak, or the measured rate of a GPU that is not in the table; see plan::machine_rate().
  double matmul_rate = 0;
  bool rate_is_measured = true;
  std::string rate_name;    ///< name in plan::MachineRate
  std::string rate_source;  ///< source in plan::MachineRate
  std::int64_t memory_peak_bytes = 0;
  bool graphs = false;                          ///< the steps ran as CUDA graphs
  std::array<double, kPhases> phase_seconds{};  ///< mean of a step, of the first rank
  BenchClocks clocks;
  std::vector<BenchComponent> components;
  BenchKernels kernels;
  std::vector<BenchDType> dtypes;
  BenchMemory memory;  ///< memory of this rank
  [[nodiscard]] double tokens_per_second() const { return tokens / median; }
  [[nodiscard]] double flops_per_second() const { return model_flops / median; }
  /// FLOP/s of the median step over the matrix rate, causal.
  [[nodiscard]] double share_of_rate() const { return flops_per_second() / matmul_rate; }
  /// The share, or not a number if it is above 1: the rate was then measured on a busy machine.
  [[nodiscard]] double mfu() const {
    return share_of_rate() > 1 ? std::numeric_limits<double>::quiet_NaN() : share_of_rate();
  }
  [[nodiscard]] double mfu_full() const { return mfu() * model_flops_full / model_flops; }
};

/// Times steps of a deck on generated tokens. Collective over the world. On the CPU every step
/// begins when all ranks have ended the last one; on a GPU steps follow each other as in training.
[[nodiscard]] BenchResult run_bench(comm::World& world, const train::Config& config,
                                    const BenchOptions& options);

/// Calls of the host to CUDA in steps 5 to 15, after the capture of graphs, with the loader at
/// work.
struct CallCounts {
  static constexpr int kFirstStep = 5;
  static constexpr int kLastStep = 15;
  static constexpr int kSteps = kLastStep - kFirstStep + 1;
  static constexpr double kLaunchesPerSegment = 4;
  int rank = 0;                  ///< that made these calls: the one farthest from passing
  int segments = 0;              ///< segments of a step
  std::vector<CallCount> calls;  ///< calls in all these steps together
  [[nodiscard]] std::int64_t count(CallKind kind) const;
  [[nodiscard]] double launches_per_segment() const;
  /// No allocation, no synchronization, at most four launches a segment.
  [[nodiscard]] bool passes() const;
};
/// Collective over the world. Throws Error(device) on the CPU and if there is no CUPTI.
[[nodiscard]] CallCounts count_calls(comm::World& world, const train::Config& config,
                                     const plan::IsLegal& is_legal = {});

}  // namespace hyperslab::bench
