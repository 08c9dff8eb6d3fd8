// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::cli {

/// `bench --mode data`: times the loader alone, prints, and writes --json if it is given.
void run_bench_of_data(comm::World& world, const Arguments& args, const train::Config& config,
                       int warmup, int steps);

}  // namespace hyperslab::cli
