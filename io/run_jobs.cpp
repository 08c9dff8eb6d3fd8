// SPDX-License-Identifier: Apache-2.0
#include "run_jobs.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace hyperslab::io {

void run_jobs(std::size_t jobs, int threads, const std::function<void(std::size_t)>& job) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::size_t failed = jobs;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs; i = next++) {
      try {
        job(i);
      } catch (...) {
        next = jobs;
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t expected = std::min(jobs, static_cast<std::size_t>(std::max(threads, 1)));
    for (std::size_t i = 1; i < expected; ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hyperslab::io
