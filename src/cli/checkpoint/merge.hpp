// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"

namespace hyperslab::cli {

/// `checkpoint merge`: adapters and their base become a whole model; one rank.
void merge_checkpoint(const Arguments& args);

}  // namespace hyperslab::cli
