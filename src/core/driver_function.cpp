// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/driver_function.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {

void* driver_address(std::string_view who, const char* name, std::source_location where) {
  constexpr unsigned kVersion = 12000;  // the function as CUDA 12.0 defines it
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found),
             who, "cudaGetDriverEntryPointByVersion", where);
  if (found == cudaDriverEntryPointSuccess) return address;
  throw Error(ExitCode::device, std::string(who) + ": the driver lacks " + name, where);
}

}  // namespace hyperslab
