// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "hyperslab/core/arena.hpp"

namespace hyperslab::comm {

/// Measures the time of a stream's work between start() and stop(), by the GPU's nanosecond timer;
/// never nested. The marks are kernels of one thread, so that they work in graphs too.
class BusyClock {
 public:
  BusyClock();

  /// Enqueues the clearing of the sums; comes before the first start.
  [[nodiscard]] cudaError_t clear(cudaStream_t stream);
  /// Enqueue a mark.
  [[nodiscard]] cudaError_t start(cudaStream_t stream);
  [[nodiscard]] cudaError_t stop(cudaStream_t stream);
  /// All intervals that the GPU has finished so far; never blocks.
  [[nodiscard]] double seconds() const;
  /// The address of the sum on the GPU.
  [[nodiscard]] const std::uint64_t* device_nanoseconds() const;

 private:
  Buffer sums_;             ///< on the GPU: begin of the open interval, sum
  PinnedBuffer published_;  ///< the sum, as the host sees it
};

}  // namespace hyperslab::comm
