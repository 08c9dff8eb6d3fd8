// SPDX-License-Identifier: Apache-2.0
// eval --log-probabilities.
#pragma once

#include "source.hpp"

namespace hyperslab::cli {

void add_token_score_options(Arguments& args);
/// Writes the log-probabilities of the tokens of --data. Collective. Throws Error(usage) unless one
/// checkpoint of text and one file are named, and as eval::token_scores().
void run_token_scores(comm::World& world, const Arguments& args, const EvalSource& source);

}  // namespace hyperslab::cli
