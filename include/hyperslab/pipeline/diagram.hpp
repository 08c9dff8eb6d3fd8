// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/pipeline/schedule.hpp"

namespace hyperslab::pipeline {

/// A drawing of the program in time: a row per rank, a column per unit (one forward of one chunk;
/// a whole backward is two units, zero_bubble's parts are one each; transfers take no time). A cell
/// names the pass (F, B, I input gradient, W weight gradient), the microbatch and, with several
/// chunks, the chunk as a letter: "F3", "B12b"; "=" goes on with the pass before, "." is idle.
/// Panels of at most `line_width` characters follow each other in time; lines end without blanks.
[[nodiscard]] std::string diagram(const Program& program, int line_width = 120);

}  // namespace hyperslab::pipeline
