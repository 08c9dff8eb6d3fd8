// SPDX-License-Identifier: Apache-2.0
// hyperslab eval --tasks: questions instead of a text.
#pragma once

#include "../command.hpp"
#include "source.hpp"

namespace hyperslab::cli {

void add_task_options(Arguments& args);

/// Prints a table of the checkpoints' scores in --tasks, writes it to --json, and appends it
/// to eval_tasks.jsonl of the run directories that hold the checkpoints. Collective over the world.
/// Throws as TaskEvaluator, and Error(usage) for options that are for a text.
void run_tasks(comm::World& world, const Arguments& args, const EvalSource& source);

}  // namespace hyperslab::cli
