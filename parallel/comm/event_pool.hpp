// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace hyperslab::comm {

/// CUDA events for ordering streams. It makes an event only if all are taken, so a step makes
/// none once it has seen a step's most operations in progress. An event may be used again after a
/// graph's capture: recording it again forgets the capture.
class EventPool {
 public:
  /// `communicator`: its name, for errors.
  EventPool(std::string communicator, std::size_t most);
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  EventPool(EventPool&&) = delete;
  EventPool& operator=(EventPool&&) = delete;

  [[nodiscard]] cudaEvent_t take();
  /// Streams that already wait for the event are not disturbed when it is recorded again.
  void give_back(cudaEvent_t event) { free_.push_back(event); }

 private:
  std::string communicator_;
  std::vector<cudaEvent_t> all_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace hyperslab::comm
