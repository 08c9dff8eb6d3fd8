// SPDX-License-Identifier: Apache-2.0
#include "common.cuh"
#include "cuda/products/weight_ring.cuh"
#include "handles.hpp"
#include "kernel_table.hpp"
#include "warpgroup.hpp"

namespace hyperslab::ops::cuda {

Features features_of_kernels() {
  return {kOverlaps, kOverlaps && most_shared_bytes() >= kRingShared, has_warpgroups()};
}

}  // namespace hyperslab::ops::cuda
