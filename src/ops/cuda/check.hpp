// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "hyperslab/core/error.hpp"

namespace hyperslab::ops::cuda {

/// Throws Error(device) naming the op where a CUDA call or the last launch failed.
inline void check_cuda(const char* op, cudaError_t status,
                       std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  throw Error(ExitCode::device,
              std::string(op) + ": CUDA reports " + cudaGetErrorName(status) + " (" +
                  cudaGetErrorString(status) +
                  "); an earlier op may be the cause, CUDA_LAUNCH_BLOCKING=1 names the one",
              where);
}

}  // namespace hyperslab::ops::cuda

/// Checks the status of a CUDA call made by `op`.
#define HS_CUDA(op, call) ::hyperslab::ops::cuda::check_cuda((op), (call))
/// Checks the kernel launch just made by `op`.
#define HS_CUDA_LAUNCHED(op) HS_CUDA(op, cudaGetLastError())
