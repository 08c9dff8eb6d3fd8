// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/plan/plan.hpp"

namespace hyperslab::plan {

/// Adds the gathers of fully sharded data parallelism to a step of `zero: 2`. Every forward and
/// every backward of a microbatch gathers the parameters of this rank's layers over the data
/// group, `bytes_per_parameter` each, a layer ahead of its use (Zhao et al., PyTorch FSDP, VLDB 16
/// (2023), section 3.3). Hyperslab itself does not shard parameters: this only prices steps of
/// programs that do. `layers`: of this rank, as many gathers; at least 1.
void add_parameter_gathers(Plan& plan, int layers, double bytes_per_parameter);

}  // namespace hyperslab::plan
