// SPDX-License-Identifier: Apache-2.0
#include "event_pool.hpp"

#include <utility>

#include "hyperslab/core/cuda_check.hpp"
#include "nccl_check.hpp"

namespace hyperslab::comm {

EventPool::EventPool(std::string communicator, std::size_t most)
    : communicator_(std::move(communicator)) {
  all_.reserve(most);
  free_.reserve(most);
}

EventPool::~EventPool() {
  for (cudaEvent_t event : all_) {
    log_if_cuda_failed(cudaEventDestroy(event), "communicator " + communicator_,
                       "cudaEventDestroy");
  }
}

cudaEvent_t EventPool::take() {
  if (free_.empty()) {
    cudaEvent_t event = nullptr;
    HS_COMM_CUDA(communicator_, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    all_.push_back(event);
    return event;
  }
  cudaEvent_t event = free_.back();
  free_.pop_back();
  return event;
}

}  // namespace hyperslab::comm
