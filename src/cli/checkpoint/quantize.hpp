// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"

namespace hyperslab::cli {

void add_quantize_options(Arguments& args);
/// `checkpoint quantize`: quantizes the blocks' matrices of a model; one rank.
void quantize_checkpoint(comm::World& world, const Arguments& args);

}  // namespace hyperslab::cli
