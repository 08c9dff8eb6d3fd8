// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda.hpp"
#include "cuda_check.hpp"

namespace hyperslab::cuda_runtime {
void begin_capture(CUstream_st* stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

void abandon_capture(CUstream_st* stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) {
    (void)cudaGraphDestroy(graph);
  }
  (void)cudaGetLastError();
}

std::shared_ptr<void> end_capture(CUstream_st* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return {executable,
          [](void* exec) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec)); }};
}

void launch_graph(void* graph, CUstream_st* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream), "cudaGraphLaunch");
}

}  // namespace hyperslab::cuda_runtime
