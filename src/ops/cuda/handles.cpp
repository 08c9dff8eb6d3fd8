// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include <string>

#include "check.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops::cuda {
namespace {

LtHandle make_lt() {
  cublasLtHandle_t handle = nullptr;
  require_ok(cublasLtCreate(&handle), "cublasLtCreate");
  return LtHandle(handle);
}

}  // namespace

void require_ok(cublasStatus_t status, const char* call, std::source_location where) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::device,
              "cuBLASLt: " + std::string(call) + ": " + cublasLtGetStatusName(status) + " (" +
                  cublasLtGetStatusString(status) + ")",
              where);
}

Backend::Backend(CUstream_st* context_stream)
    : stream(context_stream), lt(make_lt()), lt_workspace(Device::cuda, kLtWorkspaceBytes) {}

Backend& backend_of(Context& ctx) {
  if (!ctx.backend()) ctx.backend() = std::make_shared<Backend>(ctx.stream().cuda());
  return *static_cast<Backend*>(ctx.backend().get());
}

bool is_capturing(const Backend& backend) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  HS_CUDA("cudaStreamIsCapturing", cudaStreamIsCapturing(backend.stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace hyperslab::ops::cuda
