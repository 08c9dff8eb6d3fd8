// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "hyperslab/core/version.hpp"
#include "print.hpp"

namespace hyperslab::cli {
namespace {

using nlohmann::ordered_json;

/// null if it is not a number.
ordered_json number(double value) {
  return std::isnan(value) ? ordered_json(nullptr) : ordered_json(value);
}

ordered_json component_json(const bench::BenchComponent& row) {
  ordered_json out = {{"seconds", row.seconds},
                      {"flops", row.flops},
                      {"share", row.share},
                      {"expected_share", row.expected_share}};
  if (!row.fused.empty()) out["fused"] = row.fused;
  for (const bench::BenchComponent& part : row.parts)
    out["parts"][part.name] = component_json(part);
  return out;
}

ordered_json phases_json(const std::array<double, kPhases>& seconds) {
  ordered_json out;
  for (int i = 0; i < kPhases; ++i) {
    out[std::string(name_of(static_cast<Phase>(i)))] = seconds[static_cast<std::size_t>(i)];
  }
  return out;
}

ordered_json kernel_json(const bench::BenchKernel& row, const bench::BenchKernels& all) {
  ordered_json out = {{"name", row.name},
                      {"class", name_of(row.kernel_class)},
                      {"calls", row.calls},
                      {"seconds", row.seconds},
                      {"share", row.seconds / all.seconds()},
                      {"call",
                       {{"minimum_seconds", row.call.minimum},
                        {"median_seconds", row.call.median},
                        {"maximum_seconds", row.call.maximum},
                        {"standard_deviation_seconds", row.call.standard_deviation}}},
                      {"calls_per_forward", all.calls_per_forward(row)}};
  for (int i = 0; i < kPhases; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (row.phase_calls[at] == 0) continue;
    out["phases"][std::string(name_of(static_cast<Phase>(i)))] = {
        {"calls", row.phase_calls[at]}, {"seconds", row.phase_seconds[at]}};
  }
  return out;
}

ordered_json kernels_json(const bench::BenchKernels& kernels) {
  ordered_json out;
  if (kernels.rows.empty()) {
    out["unavailable"] = kernels.unavailable;
    return out;
  }
  out["seconds"] = kernels.seconds();
  out["top"] = kernels.rows.front().name;
  out["top_calls_per_forward"] = kernels.calls_per_forward(kernels.rows.front());
  if (const bench::BenchKernel* forward = kernels.top(Phase::forward)) {
    out["top_of_forward"] = forward->name;
    out["top_of_forward_calls_per_forward"] = kernels.calls_per_forward(*forward);
  }
  out["matmul_share_of_forward"] = number(kernels.share(ops::KernelClass::matmul, Phase::forward));
  out["matmul_share"] = kernels.share(ops::KernelClass::matmul);
  out["communication_seconds"] = kernels.communication.seconds;
  out["communication_exposed_seconds"] = kernels.communication.exposed_seconds;
  for (int i = 0; i < ops::kKernelClasses; ++i) {
    const auto kernel_class = static_cast<ops::KernelClass>(i);
    out["classes"][std::string(name_of(kernel_class))] = kernels.share(kernel_class);
  }
  for (const bench::BenchKernel& row : kernels.rows)
    out["rows"].push_back(kernel_json(row, kernels));
  return out;
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) {
    text += (i == 0 ? "" : "x") + std::to_string(shape[i]);
  }
  return text;
}

std::vector<std::pair<std::string, std::size_t>> totals_of(const bench::BenchMemory& memory) {
  const model::MemoryPlan& plan = memory.plan;
  std::vector<std::pair<std::string, std::size_t>> totals = {
      {"parameters", plan.parameters}, {"gradients", plan.gradients},
      {"optimizer", plan.optimizer},   {"activations", plan.activations},
      {"scratch", plan.scratch},       {"workspace", plan.workspace},
      {"total", plan.total()}};
  if (memory.measured) {
    totals.insert(totals.end(), {{"device before", memory.before_bytes},
                                 {"device libraries", memory.library_bytes},
                                 {"device predicted", memory.predicted_bytes()},
                                 {"device measured", memory.device_bytes}});
  }
  return totals;
}

}  // namespace

ordered_json to_json(const BenchSetup& setup) {
  return {{"model", setup.model},
          {"parameters", setup.parameters},
          {"device", setup.device},
          {"precision", setup.precision},
          {"layout", setup.layout},
          {"microbatch", setup.microbatch},
          {"microbatches", setup.microbatches},
          {"global_batch", setup.global_batch},
          {"context", setup.context}};
}

ordered_json head_of(const Arguments& args, const BenchSetup& setup) {
  ordered_json head = {{"deck", args.list("DECK").front()},
                       {"mode", args.get<std::string>("mode")},
                       {"ranks", setup.ranks},
                       {"commit", commit()}};
  head.update(to_json(setup));
  return head;
}

ordered_json to_json(const bench::BenchResult& result, bool cold) {
  ordered_json out;
  out["step_seconds"] = result.step_seconds;
  if (cold && result.step_seconds.size() > 1) {
    const auto later = bench::figures_of(std::span(result.step_seconds).subspan(1));
    out["first_step_seconds"] = result.step_seconds.front();
    out["later_steps"] = {{"mean_seconds", later.mean},
                          {"standard_deviation_seconds", later.standard_deviation},
                          {"median_seconds", later.median}};
  }
  out["mean_seconds"] = result.mean;
  out["standard_deviation_seconds"] = result.standard_deviation;
  out["median_seconds"] = result.median;
  out["tokens_per_second"] = result.tokens_per_second();
  out["model_flops"] = result.model_flops;
  out["flops_per_second"] = result.flops_per_second();
  out["matmul_rate"] = number(result.matmul_rate);
  out["matmul_rate_is_measured"] = result.rate_is_measured;
  out["matmul_rate_source"] = result.rate_source;
  out["mfu"] = number(result.mfu());
  out["mfu_full"] = number(result.mfu_full());
  out["memory_peak_bytes"] = result.memory_peak_bytes;
  out["graphs"] = result.graphs;
  out["clocks"] = {{"host_seconds", number(result.clocks.host)},
                   {"device_seconds", number(result.clocks.device)},
                   {"event_seconds", number(result.clocks.events)},
                   {"cupti_kernel_seconds", number(result.clocks.cupti_kernels)}};
  out["phases"] = phases_json(result.phase_seconds);
  for (const bench::BenchComponent& row : result.components) {
    out["components"][row.name] = component_json(row);
  }
  for (const bench::BenchDType& row : result.dtypes) {
    out["dtypes"][row.what] = {{"storage", row.storage}, {"compute", row.compute}};
  }
  if (!result.kernels.rows.empty() || !result.kernels.unavailable.empty()) {
    out["kernels"] = kernels_json(result.kernels);
  }
  return out;
}

ordered_json to_json(const bench::CallCounts& counts) {
  ordered_json out = {{"first_step", bench::CallCounts::kFirstStep},
                      {"last_step", bench::CallCounts::kLastStep},
                      {"rank", counts.rank},
                      {"allocations", counts.count(CallKind::allocation)},
                      {"synchronizations", counts.count(CallKind::synchronization)},
                      {"kernel_launches", counts.count(CallKind::launch)},
                      {"graph_launches", counts.count(CallKind::graph_launch)},
                      {"segments_per_step", counts.segments},
                      {"launches_per_segment", counts.launches_per_segment()},
                      {"passes", counts.passes()}};
  for (const CallCount& call : counts.calls) {
    out["calls"][call.name] = {{"kind", name_of(call.kind)}, {"calls", call.calls}};
  }
  return out;
}

ordered_json to_json(const bench::BenchMemory& memory, int rank) {
  ordered_json out = {{"rank", rank}};
  for (const auto& [name, bytes] : totals_of(memory)) out["totals"][name] = bytes;
  if (memory.measured) out["difference"] = memory.difference();
  for (const auto& [arena, allocation] : memory.allocations) {
    out["allocations"].push_back({{"arena", arena},
                                  {"label", allocation.label},
                                  {"dtype", name_of(allocation.dtype)},
                                  {"shape", shape_text(allocation.shape)},
                                  {"bytes", allocation.bytes},
                                  {"offset", allocation.offset_bytes}});
  }
  return out;
}

ordered_json timeline_json(const bench::BenchMemory& memory, int rank) {
  const model::MemoryPlan& plan = memory.plan;
  ordered_json out = {{"rank", rank},
                      {"held_bytes",
                       {{"parameters", plan.parameters},
                        {"gradients", plan.gradients},
                        {"optimizer", plan.optimizer},
                        {"activations", plan.activations},
                        {"workspace", plan.scratch + plan.workspace}}},
                      {"residual_stream_bytes", memory.residual_stream_bytes},
                      {"spans", ordered_json::array()},
                      {"lives", ordered_json::array()}};
  for (const auto& [name, start, end] : memory.spans) {
    out["spans"].push_back({{"name", name}, {"start_seconds", start}, {"end_seconds", end}});
  }
  for (const io::AllocationLife& life : memory.lives) {
    out["lives"].push_back({{"category", life.category},
                            {"label", life.label},
                            {"layer", life.layer},
                            {"slot", life.slot},
                            {"bytes", life.bytes},
                            {"start_seconds", life.start_seconds},
                            {"end_seconds", life.end_seconds}});
  }
  return out;
}

std::string csv_header() { return "rank,arena,label,dtype,shape,bytes,offset\n"; }

std::string to_csv(const bench::BenchMemory& memory, int rank) {
  std::string text;
  for (const auto& [arena, allocation] : memory.allocations) {
    text += fmt::format("{},{},{},{},{},{},{}\n", rank, arena, allocation.label,
                        name_of(allocation.dtype), shape_text(allocation.shape), allocation.bytes,
                        allocation.offset_bytes);
  }
  for (const auto& [name, bytes] : totals_of(memory)) {
    text += fmt::format("{},total,{},,,{},\n", rank, name, bytes);
  }
  return text;
}

}  // namespace hyperslab::cli
