// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"

#include <string>

#include "check.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kClose = "closing a handle";

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

void log_if_close_failed(cublasStatus_t status) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  log::failed_close("cuBLASLt", kClose, cublasLtGetStatusString(status));
}

void log_if_close_failed(cudaError_t status) noexcept {
  log_if_cuda_failed(status, "CUDA", kClose);
}

Backend::Backend(CUstream_st* context_stream)
    : stream(context_stream), lt(make_lt()), lt_workspace(Device::cuda, kLtWorkspaceBytes) {}

namespace {

int attribute_of_gpu(cudaDeviceAttr attribute, const char* op) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), op, "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), op, "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

int most_shared_bytes() {
  static const int bytes =
      attribute_of_gpu(cudaDevAttrMaxSharedMemoryPerBlockOptin, "most_shared_bytes");
  return bytes;
}

int multiprocessors() {
  static const int count = attribute_of_gpu(cudaDevAttrMultiProcessorCount, "multiprocessors");
  return count;
}

int compute_capability() {
  constexpr const char* kOp = "compute_capability";
  static const int capability = 10 * attribute_of_gpu(cudaDevAttrComputeCapabilityMajor, kOp) +
                                attribute_of_gpu(cudaDevAttrComputeCapabilityMinor, kOp);
  return capability;
}

Backend& backend_of(Context& ctx) {
  if (!ctx.backend()) ctx.backend() = std::make_shared<Backend>(ctx.stream().cuda());
  return *static_cast<Backend*>(ctx.backend().get());
}

bool is_capturing(const Backend& backend) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(backend.stream, &status), "CUDA", "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace hyperslab::ops::cuda
