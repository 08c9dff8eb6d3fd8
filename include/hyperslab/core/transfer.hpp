// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/core/context.hpp"

namespace hyperslab {

/// Enqueues to = from: equal dtypes and numbers of elements, between any of cpu and cuda, on a CPU
/// stream only of the CPU; on `meta` nothing happens. The memory must live until the stream has
/// passed the copy. With CUDA, host memory should be a PinnedBuffer: other host memory is staged by
/// the driver, which blocks the host and cannot be captured.
void copy(Stream& stream, CView from, View to);
/// Copies on the compute stream; with a CPU context the copy is done on return.
void copy(Context& ctx, CView from, View to);
/// Copies on the context's copy stream: after everything on the compute stream so far, and beside
/// the work that is enqueued there later. `from` must not be written, `to` not be used before the
/// event is complete (host) or a stream has waited for it.
[[nodiscard]] Event copy_async(Context& ctx, CView from, View to);

/// Waits until everything enqueued on the context's compute stream is done.
void synchronize(Context& ctx);

/// GPUs that this process can use; 0 without CUDA, without a driver, without a GPU. Never throws.
[[nodiscard]] int cuda_device_count() noexcept;

/// Makes GPU `index` the one that this thread's later buffers and contexts are on. Throws
/// Error(device) if there is no such GPU.
void use_cuda_device(int index);

/// The GPU that this thread's buffers and contexts are on; 0 without CUDA.
[[nodiscard]] int current_cuda_device();

/// Name of the GPU in use, such as "NVIDIA H200"; empty if there is none.
[[nodiscard]] std::string device_name();

/// The bus address of the GPU in use, such as "0000:1B:00.0"; empty if there is none.
[[nodiscard]] std::string device_bus_id();

}  // namespace hyperslab
