// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <functional>

namespace hyperslab::serve {

/// A thread for work that takes longer than the thread of all connections may wait.
class Worker {
 public:
  /// `most`: jobs that wait or run at a time.
  explicit Worker(std::size_t most) : most_(most) {}
  /// Finishes the work that was pushed.
  ~Worker() { pool_.join(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker(Worker&&) = delete;
  Worker& operator=(Worker&&) = delete;

  /// Jobs run in the order in which one thread pushes them. `job` does not throw. false: there are
  /// too many jobs, and this one is left alone.
  [[nodiscard]] bool push(std::function<void()> job);

 private:
  std::size_t most_;
  std::atomic<std::size_t> jobs_ = 0;
  boost::asio::thread_pool pool_{1};
};

}  // namespace hyperslab::serve
