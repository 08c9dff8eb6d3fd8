// SPDX-License-Identifier: Apache-2.0
// Everything about a program that can be checked rank by rank and pair by pair, without time.
#pragma once

#include <string>
#include <vector>

#include "hyperslab/pipeline/schedule.hpp"

namespace hyperslab::pipeline {

/// Indices, number and order of passes, use of slots, order of messages: a line per problem.
[[nodiscard]] std::vector<std::string> check_structure(const Program& program);

}  // namespace hyperslab::pipeline
