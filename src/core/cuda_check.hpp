// SPDX-License-Identifier: Apache-2.0
// Only for sources that are compiled in builds with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "hyperslab/core/cuda_check.hpp"

namespace hyperslab::cuda_runtime {

/// check_cuda for calls that core makes for itself.
inline void check(cudaError_t status, std::string_view call,
                  std::source_location where = std::source_location::current()) {
  check_cuda(status, "CUDA", call, where);
}
/// log_if_cuda_failed likewise.
inline void log_if_failed(cudaError_t status, std::string_view call) noexcept {
  log_if_cuda_failed(status, "CUDA", call);
}

}  // namespace hyperslab::cuda_runtime
