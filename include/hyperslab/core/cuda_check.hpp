// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <string_view>

namespace hyperslab {

// Defined in builds with CUDA only. A status is the number of a cudaError_t, so that this header
// needs none of CUDA's.

/// Throws Error(device) if `status` is not cudaSuccess: it names `who` made the call (a library, an
/// op, a communicator), the call and CUDA's text. CUDA's last error is cleared, so that the next
/// call does not report it again.
void check_cuda(int status, std::string_view who, std::string_view call,
                std::source_location where = std::source_location::current());

/// Checks for destructors, which cannot throw: a failure is a warning in the log. A process that
/// ends may have unloaded the CUDA runtime before; that is not reported.
void log_if_cuda_failed(int status, std::string_view who, std::string_view call) noexcept;

}  // namespace hyperslab
