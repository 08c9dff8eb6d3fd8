// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"

namespace hyperslab::cli {

void add_diff_options(Arguments& args);
/// `checkpoint diff A B`: prints differences; false if the training has any. One rank.
[[nodiscard]] bool diff_checkpoints(const Arguments& args);

}  // namespace hyperslab::cli
