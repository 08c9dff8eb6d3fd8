// SPDX-License-Identifier: Apache-2.0
#include "profiler_cuda.hpp"

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "cuda_check.hpp"

namespace hyperslab::cuda_runtime {
std::shared_ptr<void> make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return {event, [](void* made) {
            log_if_failed(cudaEventDestroy(static_cast<cudaEvent_t>(made)), "cudaEventDestroy");
          }};
}

void record_event(void* event, CUstream_st* stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream), "cudaEventRecord");
}

double seconds_between(void* begin, void* end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin),
                             static_cast<cudaEvent_t>(end)),
        "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

DeviceMemory memory_info() {
  DeviceMemory memory;
  check(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
  return memory;
}

void start_profiler() { check(cudaProfilerStart(), "cudaProfilerStart"); }
void stop_profiler() { check(cudaProfilerStop(), "cudaProfilerStop"); }

}  // namespace hyperslab::cuda_runtime
