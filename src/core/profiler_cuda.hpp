// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "hyperslab/core/profiler.hpp"

// CUDA and CUPTI for the profiler; defined only in builds with CUDA, so calls stand
// behind `if constexpr (kHasCuda)`. Failures throw Error(device).

namespace hyperslab::cuda_runtime {

[[nodiscard]] std::shared_ptr<void> make_event();
void record_event(void* event, CUstream_st* stream);
/// Both have happened.
[[nodiscard]] double seconds_between(void* begin, void* end);
[[nodiscard]] DeviceMemory memory_info();
void start_profiler();
void stop_profiler();

}  // namespace hyperslab::cuda_runtime

namespace hyperslab::cupti {

/// Empty if CUPTI is open.
[[nodiscard]] std::string unavailable();
[[nodiscard]] std::unique_ptr<Profiler::Backend> make_backend(
    const Recorder& recorder, Profiler::Watch watch, Profiler::IsCommunication communicates);

}  // namespace hyperslab::cupti
