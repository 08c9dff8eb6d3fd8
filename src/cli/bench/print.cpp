// SPDX-License-Identifier: Apache-2.0
#include "print.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "../planned.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/mesh/mesh.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::size_t kKernelRows = 40;
constexpr std::size_t kKernelWidth = 72;

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

void print_figures(const char* what, const bench::StepFigures& figures, std::size_t steps) {
  fmt::print("{:<16} {:.3f} ms median, {:.3f} ms mean, {:.3f} ms standard deviation of {} step{}\n",
             what, 1e3 * figures.median, 1e3 * figures.mean, 1e3 * figures.standard_deviation,
             steps, steps == 1 ? "" : "s");
}

void print_component(const bench::BenchComponent& row, const std::string& name) {
  if (row.seconds == 0 && row.flops == 0 && !row.fused.empty() && name != row.name) {
    fmt::print("{:<14} {:>12} {:>12} {:>8} {:>16}   {}\n", name, "-", "-", "-", "-", row.fused);
    return;
  }
  fmt::print("{:<14} {:>12.3f} {:>12.3f} {:>6.1f} % {:>14.1f} %{}{}\n", name, 1e3 * row.seconds,
             1e-9 * row.flops, 100.0 * row.share, 100.0 * row.expected_share,
             row.fused.empty() ? "" : "   ", row.fused);
}

std::string shortened(std::string name) {
  if (name.size() > kKernelWidth) name.replace(kKernelWidth - 3, std::string::npos, "...");
  return name;
}

void print_kernel(const bench::BenchKernel& row, const bench::BenchKernels& all, int steps) {
  const auto ms = [&](Phase phase) {
    return 1e3 * row.phase_seconds[static_cast<std::size_t>(phase)] / steps;
  };
  fmt::print("{:<14} {:>8.1f} {:>10.4f} {:>6.1f} % {:>10.4f} {:>10.4f} {:>10.4f}   {}\n",
             name_of(row.kernel_class), static_cast<double>(row.calls) / steps,
             1e3 * row.seconds / steps, 100.0 * row.seconds / all.seconds(), ms(Phase::forward),
             ms(Phase::backward), ms(Phase::optimizer), shortened(row.name));
}

void print_calls(const bench::BenchKernel& row) {
  const auto& [minimum, median, maximum, deviation] = row.call;
  fmt::print("{:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}   {}\n", 1e6 * minimum, 1e6 * median,
             1e6 * maximum, 1e6 * deviation, shortened(row.name));
}

void print_kernel_classes(const bench::BenchKernels& kernels, int steps) {
  fmt::print("\n{:<14} {:>10} {:>8} {:>12} {:>12}\n", "class", "ms", "share", "of forward",
             "of backward");
  for (int i = 0; i < ops::kKernelClasses; ++i) {
    const auto kernel_class = static_cast<ops::KernelClass>(i);
    const auto share = [&](Phase phase) {
      return kernels.seconds(phase) > 0 ? 100.0 * kernels.share(kernel_class, phase) : 0.0;
    };
    fmt::print("{:<14} {:>10.4f} {:>6.1f} % {:>10.1f} % {:>10.1f} %\n", name_of(kernel_class),
               1e3 * kernels.share(kernel_class) * kernels.seconds() / steps,
               100.0 * kernels.share(kernel_class), share(Phase::forward), share(Phase::backward));
  }
}

void print_utilization(const bench::BenchResult& result) {
  if (result.share_of_rate() > 1) {
    fmt::print(
        "utilization      unknown: the steps ran at {:.2f} times {}, during which other "
        "programs used the machine\n",
        result.share_of_rate(), result.rate_name);
    return;
  }
  fmt::print("utilization      {:.1f} % with attention as masked, {:.1f} % with all of it, of {}\n",
             100.0 * result.mfu(), 100.0 * result.mfu_full(), result.rate_name);
}

}  // namespace

BenchSetup setup_of(const train::Config& config) {
  const model::ModelSpec& spec = config.model;
  BenchSetup setup;
  setup.model =
      fmt::format("{}: {} layers, width {}, {} heads, vocabulary {}", name_of(spec.family),
                  spec.layers, spec.width, spec.heads, spec.vocabulary);
  if (spec.experts) {
    setup.model +=
        fmt::format("; {} experts, {} a token{}", spec.experts.count, spec.experts.active,
                    spec.experts.in_turn ? ", in turn and not by a router's choice" : "");
  }
  setup.parameters = model::parameter_count(spec);
  setup.device = planned_device(config) == Device::cuda ? device_name() : "cpu";
  setup.precision = name_of(config.precision.compute);
  setup.ranks = config.parallel.ranks();
  setup.layout = mesh::describe(config.parallel);
  setup.microbatch = config.train.microbatch;
  setup.microbatches = config.microbatches();
  setup.global_batch = config.train.global_batch;
  setup.context = spec.context;
  return setup;
}

void print_setup(const BenchSetup& setup) {
  fmt::print("model            {}; {} parameters\n", setup.model, setup.parameters);
  fmt::print("device           {}, {}, {} rank{}: {}\n", setup.device, setup.precision, setup.ranks,
             setup.ranks == 1 ? "" : "s", setup.layout);
  fmt::print(
      "shape            {} samples x {} tokens a microbatch, {} of them a step on each data "
      "rank, {} samples in all\n",
      setup.microbatch, setup.context, setup.microbatches, setup.global_batch);
}

void print_times(const bench::BenchResult& result, bool cold, bool each) {
  const std::vector<double>& steps = result.step_seconds;
  for (std::size_t i = 0; each && i < steps.size(); ++i) {
    fmt::print("step {:<11} {:.3f} ms\n", i + 1, 1e3 * steps[i]);
  }
  print_figures("step", {result.mean, result.standard_deviation, result.median}, steps.size());
  if (cold && steps.size() > 1) {
    fmt::print("first step       {:.3f} ms, with setup and first calls\n", 1e3 * steps.front());
    print_figures("later steps", bench::figures_of(std::span(steps).subspan(1)), steps.size() - 1);
  }
  if (!std::isnan(result.clocks.events)) {
    fmt::print("clocks           {:.3f} ms stamps, {:.3f} ms CUDA events, {:.3f} ms host",
               1e3 * result.clocks.device, 1e3 * result.clocks.events, 1e3 * result.clocks.host);
    if (!std::isnan(result.clocks.cupti_kernels)) {
      fmt::print(", {:.3f} ms in kernels by CUPTI", 1e3 * result.clocks.cupti_kernels);
    }
    fmt::print("; graphs {}\n", result.graphs ? "on" : "off");
  }
  fmt::print("tokens           {:.0f} a step, {:.1f} a second by the median, as all rates below\n",
             result.tokens, result.tokens_per_second());
  fmt::print("model FLOPs      {:.3f} GFLOP a step, {:.2f} GFLOP/s\n", 1e-9 * result.model_flops,
             1e-9 * result.flops_per_second());
  fmt::print("matmul rate      {:.2f} GFLOP/s of all ranks together, {}: {}\n",
             1e-9 * result.matmul_rate, result.rate_is_measured ? "measured" : "the peak",
             result.rate_source);
  print_utilization(result);
  fmt::print("memory           {:.1f} MiB on the fullest rank\n",
             static_cast<double>(result.memory_peak_bytes) / 1048576.0);
}

void print_components(const bench::BenchResult& result) {
  fmt::print("\n{:<14} {:>12} {:>12} {:>8} {:>16}   {}\n", "component", "ms", "GFLOP", "share",
             "share of FLOPs", "in the same kernels");
  for (const bench::BenchComponent& row : result.components) {
    print_component(row, row.name);
    for (const bench::BenchComponent& part : row.parts) print_component(part, "  " + part.name);
  }
}

void print_kernels(const bench::BenchResult& result) {
  const bench::BenchKernels& kernels = result.kernels;
  if (kernels.rows.empty()) {
    fmt::print("\nno table of kernels: {}\n",
               kernels.unavailable.empty() ? "none ran" : kernels.unavailable);
    return;
  }
  const auto steps = static_cast<int>(result.step_seconds.size());
  fmt::print("\n{:<14} {:>8} {:>10} {:>8} {:>10} {:>10} {:>10}   {}\n", "class", "calls", "ms",
             "share", "forward", "backward", "optimizer", "kernel (of a step)");
  for (std::size_t i = 0; i < std::min(kKernelRows, kernels.rows.size()); ++i) {
    print_kernel(kernels.rows[i], kernels, steps);
  }
  fmt::print("\n{:>10} {:>10} {:>10} {:>10}   {}\n", "minimum us", "median", "maximum", "deviation",
             "a call of");
  for (std::size_t i = 0; i < std::min(kKernelRows, kernels.rows.size()); ++i) {
    print_calls(kernels.rows[i]);
  }
  if (kernels.rows.size() > kKernelRows) {
    fmt::print("{} more kernels are in the file of --json\n", kernels.rows.size() - kKernelRows);
  }
  print_kernel_classes(kernels, steps);
  const bench::BenchKernel& top = kernels.rows.front();
  if (const bench::BenchKernel* forward = kernels.top(Phase::forward)) {
    fmt::print("\ntop of forward   {}, {:.1f} calls a forward pass", forward->name,
               kernels.calls_per_forward(*forward));
  }
  fmt::print("\ntop of all       {}, {:.1f} calls a step\n", top.name,
             static_cast<double>(top.calls) / steps);
  fmt::print("matmul share     {:.1f} % of forward, {:.1f} % of all\n",
             100.0 * kernels.share(ops::KernelClass::matmul, Phase::forward),
             100.0 * kernels.share(ops::KernelClass::matmul));
  if (kernels.communication.seconds > 0) print_communication(result);
}

void print_communication(const bench::BenchResult& result) {
  const auto& [busy, exposed] = result.kernels.communication;
  if (!result.kernels.unavailable.empty()) {
    fmt::print("communication    not known: {}\n", result.kernels.unavailable);
    return;
  }
  const double steps = static_cast<double>(result.step_seconds.size());
  fmt::print("communication    {:.3f} ms a step, {:.3f} ms of it exposed ({:.1f} %)\n",
             1e3 * busy / steps, 1e3 * exposed / steps, busy > 0 ? 100.0 * exposed / busy : 0.0);
}

void print_dtypes(const bench::BenchResult& result) {
  fmt::print("\n{:<24} {:<8} {}\n", "tensor", "storage", "compute");
  for (const bench::BenchDType& row : result.dtypes) {
    fmt::print("{:<24} {:<8} {}\n", row.what, row.storage, row.compute);
  }
}

void print_memory(const bench::BenchMemory& memory) {
  const model::MemoryPlan& plan = memory.plan;
  fmt::print(
      "\nplanned MiB      {:.1f} parameters, {:.1f} gradients, {:.1f} optimizer, {:.1f} "
      "activations, {:.1f} scratch, {:.1f} workspace, {:.1f} in all\n",
      mebibytes(plan.parameters), mebibytes(plan.gradients), mebibytes(plan.optimizer),
      mebibytes(plan.activations), mebibytes(plan.scratch), mebibytes(plan.workspace),
      mebibytes(plan.total()));
  if (plan.host > 0) fmt::print("planned on host  {:.1f} MiB\n", mebibytes(plan.host));
  if (!memory.measured) return;
  fmt::print(
      "device MiB       {:.1f} predicted ({:.1f} before, {:.1f} libraries), {:.1f} measured, "
      "{:+.2f} %\n",
      mebibytes(memory.predicted_bytes()), mebibytes(memory.before_bytes),
      mebibytes(memory.library_bytes), mebibytes(memory.device_bytes), 100.0 * memory.difference());
}

void print_counts(const bench::CallCounts& counts) {
  using bench::CallCounts;
  const auto per_step = [&](CallKind kind) {
    return static_cast<double>(counts.count(kind)) / CallCounts::kSteps;
  };
  fmt::print("steps {} to {}, rank {}\n", CallCounts::kFirstStep, CallCounts::kLastStep,
             counts.rank);
  fmt::print("allocations      {}\n", counts.count(CallKind::allocation));
  fmt::print("synchronizations {}\n", counts.count(CallKind::synchronization));
  fmt::print("launches         {:.1f} kernels and {:.1f} graphs a step\n",
             per_step(CallKind::launch), per_step(CallKind::graph_launch));
  fmt::print("segments         {} a step, {:.2f} launches each, at most {:.0f}\n", counts.segments,
             counts.launches_per_segment(), CallCounts::kLaunchesPerSegment);
  fmt::print("\n{:>10} {:<16} {}\n", "a step", "kind", "call");
  for (const CallCount& call : counts.calls) {
    fmt::print("{:>10.2f} {:<16} {}\n", static_cast<double>(call.calls) / CallCounts::kSteps,
               name_of(call.kind), call.name);
  }
  fmt::print("{}\n", counts.passes() ? "no host in the loop" : "the host is in the loop");
}

}  // namespace hyperslab::cli
