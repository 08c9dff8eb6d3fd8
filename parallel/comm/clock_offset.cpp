// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/clock_offset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "host_id.hpp"
#include "hyperslab/core/recorder.hpp"

namespace hyperslab::comm {
namespace {

constexpr int kQuestions = 16;

ClockOffset ask_first_rank(World& world, const std::function<double()>& clock) {
  ClockOffset best;
  for (int i = 0; i < kQuestions; ++i) {
    const double asked = clock();
    world.send(0, asked);
    const double there = world.receive(0);
    const double answered = clock();
    const double error = 0.5 * (answered - asked);
    if (i == 0 || error < best.error_seconds) best = {there - 0.5 * (asked + answered), error};
  }
  return best;
}

void answer(World& world, int rank, const std::function<double()>& clock) {
  for (int i = 0; i < kQuestions; ++i) {
    (void)world.receive(rank);
    world.send(rank, clock());
  }
}

}  // namespace

ClockOffset measure_clock_offset(World& world) {
  return measure_clock_offset(world, machine_id(world.host()), now_seconds);
}

ClockOffset measure_clock_offset(World& world, const std::string& machine,
                                 const std::function<double()>& clock) {
  const std::vector<std::string> machines = world.all_gather(machine);
  const auto leader_of = [&](const std::string& name) {
    return static_cast<int>(std::ranges::find(machines, name) - machines.begin());
  };
  ClockOffset mine;
  for (int rank = 1; rank < world.size(); ++rank) {
    const std::string& name = machines[static_cast<std::size_t>(rank)];
    if (leader_of(name) != rank) continue;
    if (world.rank() == 0) answer(world, rank, clock);
    if (world.rank() == rank) mine = ask_first_rank(world, clock);
  }
  const std::vector<std::string> found =
      world.all_gather(fmt::format("{:a} {:a}", mine.seconds, mine.error_seconds));
  const std::string& leaders = found[static_cast<std::size_t>(leader_of(machine))];
  char* rest = nullptr;
  const double seconds = std::strtod(leaders.c_str(), &rest);
  return {seconds, std::strtod(rest, nullptr)};
}

}  // namespace hyperslab::comm
