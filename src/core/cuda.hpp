// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

struct CUevent_st;
struct CUstream_st;

// The CUDA runtime for core; defined only in builds with CUDA, so callers test
// `if constexpr (kHasCuda)`. Failures throw Error(device).

namespace hyperslab::cuda_runtime {

/// Memory of the GPU in use; the error of a full GPU names the bytes asked for and free.
[[nodiscard]] void* allocate(std::size_t bytes);
void release(void* memory) noexcept;

/// Page-locked memory of the host, and its address on the GPU.
[[nodiscard]] void* allocate_pinned(std::size_t bytes);
[[nodiscard]] void* device_address(void* pinned);
void release_pinned(void* memory) noexcept;

/// Streams that this thread makes from now on have the highest priority.
void prefer_streams() noexcept;
/// With true, streams that this thread makes from now on have kMainStreamPriority.
void make_main_streams(bool main) noexcept;
inline constexpr int kMainStreamPriority = -1;  ///< lower numbers start first; others have 0
/// A stream that does not wait for the default stream.
[[nodiscard]] CUstream_st* make_stream();
void destroy_stream(CUstream_st* stream) noexcept;
void synchronize(CUstream_st* stream);

/// An event, without a time, of all work enqueued on the stream so far.
[[nodiscard]] std::shared_ptr<CUevent_st> record(CUstream_st* stream);
void wait(CUstream_st* stream, CUevent_st* event);
void synchronize(CUevent_st* event);
/// Never blocks.
[[nodiscard]] bool is_complete(CUevent_st* event);

/// Enqueues a copy between any of host and GPU.
void copy(CUstream_st* stream, void* to, const void* from, std::size_t bytes);
/// Copies after and before everything else on the GPU. Setup and tests only.
void copy_blocking(void* to, const void* from, std::size_t bytes);
/// Sets every byte; ordered as copy_blocking.
void fill_blocking(void* to, unsigned char value, std::size_t bytes);

/// A stream's work from now on goes into a graph instead of the GPU (thread-local capture).
void begin_capture(CUstream_st* stream);
void abandon_capture(CUstream_st* stream) noexcept;
/// The captured work, ready to launch.
[[nodiscard]] std::shared_ptr<void> end_capture(CUstream_st* stream);
void launch_graph(void* graph, CUstream_st* stream);

[[nodiscard]] int device_count() noexcept;
/// CUDA versions of the driver and of this program, if CUDA calls the driver too old for it; else
/// 0.
struct Versions {
  int driver = 0;
  int program = 0;
};
[[nodiscard]] Versions refused_versions() noexcept;
void use_device(int index);
[[nodiscard]] int current_device();
[[nodiscard]] std::string device_name();
[[nodiscard]] std::string device_bus_id();

}  // namespace hyperslab::cuda_runtime
