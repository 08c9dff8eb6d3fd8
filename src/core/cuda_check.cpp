// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab {
namespace {

std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
}

}  // namespace

void check_cuda(int status, std::string_view who, std::string_view call,
                std::source_location where) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Error(ExitCode::device,
              std::string(who) + ": " + std::string(call) +
                  " failed: " + text_of(static_cast<cudaError_t>(status)) +
                  "; an earlier operation of this GPU may be the cause, CUDA_LAUNCH_BLOCKING=1 "
                  "names it",
              where);
}

void log_if_cuda_failed(int status, std::string_view who, std::string_view call) noexcept {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  (void)cudaGetLastError();
  try {
    log::failed_close(who, call, text_of(static_cast<cudaError_t>(status)));
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no one left to report to
  }
}

}  // namespace hyperslab
