// SPDX-License-Identifier: Apache-2.0
// Threads that wait for the jobs of one caller after the other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hyperslab::io {

class WorkerPool {
 public:
  using Job = std::function<void(int worker, std::size_t item)>;
  /// At least 1 thread; they start with the first run().
  explicit WorkerPool(int threads) : threads_(threads < 1 ? 1 : threads) {}
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  WorkerPool(WorkerPool&&) = delete;
  WorkerPool& operator=(WorkerPool&&) = delete;
  ~WorkerPool();

  [[nodiscard]] int threads() const { return threads_; }
  /// Calls job(worker, item) for items 0 ... count - 1, each by one of the threads 0 ...
  /// threads() - 1, and returns when all are done. After a failure no further item starts; the
  /// exception of the lowest failed item is rethrown. Other callers wait for their turn.
  void run(std::size_t count, const Job& job);

 private:
  void start();
  void work(int worker);
  bool take(std::unique_lock<std::mutex>& lock, int worker);

  int threads_;
  std::mutex turn_;   // held by the caller whose turn it is
  std::mutex mutex_;  // guards everything below
  std::condition_variable asked_;
  std::condition_variable done_;
  const Job* job_ = nullptr;
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  std::size_t failed_item_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace hyperslab::io
