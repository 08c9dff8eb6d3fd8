// SPDX-License-Identifier: Apache-2.0
// What the timings of a step cost, in nanoseconds a call: a phase or a component that is entered
// and left, and a row of the timing file with its share of a flush. analysis/compare/timing_cost.py
// runs it; argument: the folder for the file.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/io/timing.hpp"

namespace hyperslab {
namespace {

constexpr int kRounds = 15;

/// Median over rounds of the nanoseconds of one of `calls` calls.
template <class Call>
double nanoseconds(int calls, Call call) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) call(i);
    rounds.push_back(1e9 * (now_seconds() - begin) / calls);
  }
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

int run(const char* folder) {
  constexpr int kScopes = 200000;
  constexpr int kRows = 2000;
  constexpr Component kComponent = {3, "some"};
  Recorder recorder(0);
  Activity activity;
  recorder.set_activity(&activity);
  recorder.begin_step(1, false);
  const double phase =
      nanoseconds(kScopes, [&](int) { const Scope scope(recorder, Phase::forward); });
  const double component =
      nanoseconds(kScopes, [&](int) { const Scope scope(recorder, kComponent); });
  (void)recorder.end_step();

  io::RankInfo info;
  for (const comm::GroupRole role : {comm::GroupRole::data, comm::GroupRole::tensor,
                                     comm::GroupRole::pipeline, comm::GroupRole::world}) {
    info.groups.push_back({role, 2, {0, 1}});
  }
  io::TimingWriter writer(folder, info);
  io::TimingRow row;
  const double of_row = nanoseconds(kRows, [&](int i) {
    row.times.step = i;
    writer.append(row);
  });
  std::printf("{\"phase_ns\": %.1f, \"component_ns\": %.1f, \"row_ns\": %.1f}\n", phase, component,
              of_row);
  return 0;
}

}  // namespace
}  // namespace hyperslab

int main(int argc, char** argv) {
  if (argc == 2) return hyperslab::run(argv[1]);
  std::fputs("timing_bench FOLDER\n", stderr);
  return 2;
}
