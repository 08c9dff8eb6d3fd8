// SPDX-License-Identifier: Apache-2.0
// Only for sources that are compiled in builds with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "hyperslab/core/error.hpp"

namespace hyperslab::cuda_runtime {

[[nodiscard]] inline std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
}

/// Throws Error(device) with CUDA's text where `call` failed; the error does not come up again.
inline void check(cudaError_t status, const char* call,
                  std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(ExitCode::device, "CUDA: " + std::string(call) + ": " + text_of(status), where);
}

}  // namespace hyperslab::cuda_runtime
