// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda.hpp"
#include "cuda_check.hpp"

namespace hyperslab::cuda_runtime {

std::shared_ptr<CUevent_st> record(CUstream_st* stream) {
  cudaEvent_t made = nullptr;
  check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  std::shared_ptr<CUevent_st> event(
      made, [](cudaEvent_t each) { log_if_failed(cudaEventDestroy(each), "cudaEventDestroy"); });
  check(cudaEventRecord(made, stream), "cudaEventRecord");
  return event;
}

void wait(CUstream_st* stream, CUevent_st* event) {
  check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

void synchronize(CUevent_st* event) { check(cudaEventSynchronize(event), "cudaEventSynchronize"); }

bool is_complete(CUevent_st* event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // it would be taken for the error of the next kernel
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}

}  // namespace hyperslab::cuda_runtime
