// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <sstream>

#include "bench_rig.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::bench {
namespace {

constexpr int kLag = 2;  // steps that the host is ahead of the device, as in training

/// "segments", then a line "calls name" for each function.
std::string to_text(const CallCounts& counts) {
  std::ostringstream text;
  text << counts.segments << '\n';
  for (const CallCount& call : counts.calls) text << call.calls << ' ' << call.name << '\n';
  return text.str();
}

CallCounts from_text(const std::string& text, int rank) {
  std::istringstream in(text);
  CallCounts counts;
  counts.rank = rank;
  in >> counts.segments;
  CallCount call;
  while (in >> call.calls >> call.name) {
    call.kind = kind_of_call(call.name);
    counts.calls.push_back(call);
  }
  return counts;
}

std::int64_t forbidden(const CallCounts& counts) {
  return counts.count(CallKind::allocation) + counts.count(CallKind::synchronization);
}

bool farther_from_the_rule(const CallCounts& a, const CallCounts& b) {
  if (forbidden(a) != forbidden(b)) return forbidden(a) > forbidden(b);
  return a.launches_per_segment() > b.launches_per_segment();
}

}  // namespace

std::int64_t CallCounts::count(CallKind kind) const {
  std::int64_t sum = 0;
  for (const CallCount& call : calls) sum += call.kind == kind ? call.calls : 0;
  return sum;
}

double CallCounts::launches_per_segment() const {
  const std::int64_t launches = count(CallKind::launch) + count(CallKind::graph_launch);
  return static_cast<double>(launches) / static_cast<double>(kSteps * segments);
}

bool CallCounts::passes() const {
  return forbidden(*this) == 0 && launches_per_segment() <= kLaunchesPerSegment;
}

CallCounts count_calls(comm::World& world, const train::Config& config,
                       const plan::IsLegal& is_legal) {
  BenchOptions options;
  options.is_legal = is_legal;
  BenchRig rig(world, config, options);
  std::optional<Profiler> profiler;
  comm::agree(world, [&] {
    if (!rig.on_gpu()) {
      throw Error(ExitCode::device,
                  "--count counts calls to CUDA, and this run is on the CPU; it needs a GPU and "
                  "run.device: cuda");
    }
    profiler.emplace(rig.trainer().context().recorder(), Profiler::Watch::calls);
  });
  for (int step = 1; step <= CallCounts::kLastStep; ++step) {
    // Waits by looking at mapped memory, without a call.
    if (step > kLag) (void)rig.trainer().result(step - kLag);
    if (step == CallCounts::kFirstStep) profiler->start();
    rig.run(BenchMode::step, step, true);
  }
  profiler->stop();
  synchronize(rig.trainer().context());
  rig.trainer().release_loader();
  CallCounts mine;
  mine.segments = rig.trainer().segments();
  mine.calls = profiler->calls();
  CallCounts worst = mine;
  const std::vector<std::string> all = world.all_gather(to_text(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    CallCounts counts = from_text(all[rank], static_cast<int>(rank));
    if (rank == 0 || farther_from_the_rule(counts, worst)) worst = std::move(counts);
  }
  return worst;
}

}  // namespace hyperslab::bench
