// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::run {

/// The command line of a start, for the commands that its summary names.
struct StartCommand {
  std::vector<std::string> launcher;   ///< "mpirun", "-np", "4"; empty: none
  std::string program;                 ///< empty: unknown, and no commands are named
  std::vector<std::string> arguments;  ///< arguments of `train`
};

struct RunOptions {
  std::optional<io::ResumeChoice> resume;  ///< absent: the deck's checkpoint.resume
  std::int64_t stop_after = 0;  ///< stop cleanly with a checkpoint after this step; 0: never
  std::string deck_yaml;        ///< the resolved deck, for the run directory and checkpoints
  StartCommand command;
  const volatile int* stop_signal = nullptr;  ///< not zero: stop, checkpoint, exit code 75
  double started_seconds = 0;  ///< when the process began, on the clock of now_seconds()
  plan::IsLegal is_legal;      ///< for advice if memory runs out
};

/// Trains as the deck says: data, resume, steps, validation, checkpoints, records. Collective over
/// the world. Returns ok or preempted; throws Error.
ExitCode run_training(comm::World& world, const train::Config& config, const RunOptions& options);

}  // namespace hyperslab::run
