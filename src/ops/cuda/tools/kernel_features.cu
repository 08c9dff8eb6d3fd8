// SPDX-License-Identifier: Apache-2.0
#include "common.cuh"
#include "kernel_table.hpp"
#include "warpgroup.hpp"

namespace hyperslab::ops::cuda {

Features features_of_kernels() { return {kOverlaps, has_warpgroups()}; }

}  // namespace hyperslab::ops::cuda
