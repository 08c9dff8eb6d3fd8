// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace hyperslab::io {

/// Calls job(0) ... job(jobs - 1) on up to `threads` threads and returns when all are done. After a
/// failure no further job starts; the exception of the lowest failed job is rethrown.
void run_jobs(std::size_t jobs, int threads, const std::function<void(std::size_t)>& job);

}  // namespace hyperslab::io
