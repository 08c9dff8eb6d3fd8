// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/run/run.hpp"

namespace hyperslab::cli {

/// How this `train` was started. The launcher's words are those of the mpirun that is this process'
/// parent; without one, of the shortest mpirun or srun for so many ranks; none for a program that
/// was started alone. The program is empty if the system does not tell it.
[[nodiscard]] run::StartCommand start_command(const comm::World& world,
                                              const std::vector<std::string>& arguments);

}  // namespace hyperslab::cli
