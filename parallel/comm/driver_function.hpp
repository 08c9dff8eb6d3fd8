// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "hyperslab/core/error.hpp"
#include "nccl_check.hpp"

namespace hyperslab::comm {

/// A function of CUDA's driver, without linking to it. Throws Error(device) if it has none of that
/// name.
template <class Function>
[[nodiscard]] Function driver_function(const std::string& communicator, const char* name) {
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  HS_COMM_CUDA(communicator, cudaGetDriverEntryPointByVersion(name, &function, kVersion,
                                                              cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw Error(ExitCode::device,
                "communicator " + communicator + ": the driver lacks " + std::string(name));
  }
  return reinterpret_cast<Function>(function);
}

}  // namespace hyperslab::comm
