// SPDX-License-Identifier: Apache-2.0
// Times the groups of the mesh and a matrix product of every rank.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/plan/machine_rate.hpp"
#include "preflight.hpp"
#include "preflight_gpu.hpp"
#include "preflight_links.hpp"

namespace hyperslab::run {
namespace {

constexpr int kTimes = 3;

bool is_asked_for(const train::RunConfig& run, Device device) {
  if (run.check_links == train::CheckLinks::automatic) {
    return device == Device::cuda || !run.machine.empty();
  }
  return run.check_links == train::CheckLinks::always;
}

Dim elements(Device device) { return device == Device::cuda ? Dim{1} << 24 : Dim{1} << 18; }

/// The best of some times.
double all_reduce_seconds(comm::World& world, Context& ctx, comm::Communicator& group, View view) {
  const auto once = [&] {
    (void)group.wait(ctx, group.all_reduce(ctx, view, comm::ReduceOp::sum));
    synchronize(ctx);
  };
  once();  // connects
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    world.barrier();
    const double start = now_seconds();
    once();
    best = std::min(best, now_seconds() - start);
  }
  (void)group.collect_seconds();  // no part of the first step's
  return best;
}

double product_seconds(comm::World& world, Context& ctx) {
  plan::MatmulProbe probe(ctx, ctx.device() == Device::cuda ? 4096 : 256);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    world.barrier();
    best = std::min(best, probe.run(4));
  }
  return best;
}

plan::MachineFile machine_file(const std::string& path) {
  try {
    return plan::read_machine_file(path);
  } catch (const Error& error) {
    throw Error(ExitCode::usage, fmt::format("run.machine: {}", error.what()));
  }
}

RankTimes measure(const Start& start, const mesh::Mesh& mesh, Device device) {
  comm::World& world = start.world;
  Context ctx(device);
  Tensor buffer(device, DType::f32, {elements(device)});
  ops::fill(ctx, 0, buffer.view());
  RankTimes mine;
  mine.host = world.host();
  mine.device = device == Device::cuda ? device_name() : "cpu";
  using mesh::Axis;
  const auto time = [&](comm::Communicator& group, mesh::AxisSet axes) {
    if (group.size() == 1) return;
    const double seconds = all_reduce_seconds(world, ctx, group, buffer.view());
    const int leader = mesh.position().moved(axes, 0).world_rank();
    mine.groups.push_back({group.role(), leader, seconds});
  };
  for (const mesh::AxisSet axes : {mesh::kWorld, mesh::kGradients, mesh::AxisSet(Axis::tensor),
                                   mesh::AxisSet(Axis::pipeline)}) {
    time(mesh.group(axes), axes);
  }
  if (mesh.context_group() != nullptr) time(*mesh.context_group(), Axis::context);
  if (mesh.expert_group() != nullptr) time(*mesh.expert_group(), Axis::expert);
  mine.product_seconds = product_seconds(world, ctx);
  return mine;
}

/// A line of numbers, then host and device, for the other ranks.
std::string to_text(const RankTimes& times) {
  std::string text = fmt::format("{} {}", times.product_seconds, times.groups.size());
  for (const RankTimes::Group& group : times.groups) {
    text += fmt::format(" {} {} {}", static_cast<int>(group.role), group.leader, group.seconds);
  }
  return fmt::format("{}\n{}\n{}", text, times.host, times.device);
}

RankTimes from_text(const std::string& text) {
  std::istringstream in(text);
  RankTimes times;
  std::size_t count = 0;
  in >> times.product_seconds >> count;
  for (std::size_t i = 0; i < count; ++i) {
    int role = 0;
    RankTimes::Group group{};
    in >> role >> group.leader >> group.seconds;
    group.role = static_cast<comm::GroupRole>(role);
    times.groups.push_back(group);
  }
  in.ignore();
  std::getline(in, times.host);
  std::getline(in, times.device);
  return times;
}

}  // namespace

void check_links(const Start& start, const mesh::Mesh& mesh, Device device) {
  comm::World& world = start.world;
  const std::string& path = start.config.run.machine;
  if (!is_asked_for(start.config.run, device)) return;
  std::optional<plan::MachineFile> machine;
  comm::agree(world, [&] {
    if (start.is_first() && !path.empty()) machine = machine_file(path);
  });
  const RankTimes mine = measure(start, mesh, device);
  const std::string problem = device == Device::cuda ? gpu_problem(device_bus_id()) : "";
  if (!problem.empty())
    log::warn(fmt::format("{} on host {}: {}", mine.device, mine.host, problem));
  std::vector<RankTimes> all;
  for (const std::string& text : world.all_gather(to_text(mine))) all.push_back(from_text(text));
  comm::agree(world, [&] {
    if (!start.is_first()) return;
    const auto bytes = static_cast<double>(4 * elements(device));
    if (world.size() > 1) log::info(link_summary(all, bytes));
    for (const auto& line : slow_groups(all, bytes, machine ? &*machine : nullptr)) log::warn(line);
    for (const auto& line : slow_ranks(all)) log::warn(line);
  });
}

}  // namespace hyperslab::run
