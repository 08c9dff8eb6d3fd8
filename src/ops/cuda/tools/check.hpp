// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "hyperslab/core/cuda_check.hpp"

namespace hyperslab::ops::cuda {

/// Throws Error(device) if the kernel launch just made by `op` failed.
inline void check_launch(const char* op,
                         std::source_location where = std::source_location::current()) {
  check_cuda(cudaGetLastError(), op, "kernel launch", where);
}

}  // namespace hyperslab::ops::cuda
