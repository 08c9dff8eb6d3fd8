// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/run/run.hpp"

namespace hyperslab::cli {

/// The command that started this `train`. The launcher's words come from the mpirun that is this
/// process' parent; without one, they are the shortest mpirun or srun for so many ranks; a program
/// that was started alone has none. The program is empty if the system does not report it.
[[nodiscard]] run::StartCommand start_command(const comm::World& world,
                                              const std::vector<std::string>& arguments);

}  // namespace hyperslab::cli
