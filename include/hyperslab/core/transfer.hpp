// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/core/context.hpp"

namespace hyperslab {

/// to = from, equal dtypes and numbers of elements, between any of cpu and cuda; on `meta` nothing
/// happens. With a CPU context it is done on return; with a CUDA context it is enqueued on its
/// stream, so the memory must live until the stream has passed it, and host memory should be a
/// PinnedBuffer (other host memory is staged by the driver, which blocks and cannot be captured).
void copy(Context& ctx, CView from, View to);

/// Waits until everything enqueued on the context's stream is done.
void synchronize(Context& ctx);

/// GPUs that this process can use; 0 without CUDA, without a driver, without a GPU. Never throws.
[[nodiscard]] int cuda_device_count() noexcept;

/// Makes GPU `index` the one that this thread's later buffers and contexts are on. Throws
/// Error(device) where there is no such GPU.
void use_cuda_device(int index);

/// Name of the GPU in use, such as "NVIDIA H200"; empty where there is none.
[[nodiscard]] std::string device_name();

/// Where the GPU in use sits, such as "0000:1B:00.0"; empty where there is none.
[[nodiscard]] std::string device_bus_id();

}  // namespace hyperslab
