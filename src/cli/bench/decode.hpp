// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::cli {

/// --draft. Throws Error(usage), on all ranks, for a number that it cannot be.
[[nodiscard]] int draft_of_bench(const Arguments& args);

/// `bench --mode decode`: times texts with random weights, prints, and writes --json if it is
/// given.
[[nodiscard]] ExitCode run_bench_of_decoding(comm::World& world, const Arguments& args,
                                             const train::Config& config);

}  // namespace hyperslab::cli
