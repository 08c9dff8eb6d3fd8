// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/bench/bench.hpp"
#include "hyperslab/plan/machine_file.hpp"

namespace hyperslab::bench {

/// Measures the rates of this machine that a plan needs. If all ranks are one tensor group, or
/// there is one: every op of a step of the deck, by CUPTI on a GPU and by the clock on the CPU,
/// medians over options.steps; in other layouts ops beside collectives would seem slow. With
/// several ranks: the collectives of that many ranks, as data, tensor and pipeline groups use them.
/// On every rank: one rank's writing to storage. Collective over the world; the result is rank 0's.
/// Throws Error(device) on a GPU without CUPTI.
[[nodiscard]] plan::MachineFile measure_machine(comm::World& world, const train::Config& config,
                                                const BenchOptions& options);

}  // namespace hyperslab::bench
