// SPDX-License-Identifier: Apache-2.0
#include "worker_pool.hpp"

#include <utility>

namespace hyperslab::io {

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::start() {
  workers_.reserve(static_cast<std::size_t>(threads_));
  while (std::ssize(workers_) < threads_) {
    const int worker = static_cast<int>(workers_.size());
    workers_.emplace_back([this, worker] { work(worker); });
  }
}

void WorkerPool::run(std::size_t count, const Job& job) {
  if (count == 0) return;
  const std::lock_guard turn(turn_);
  if (workers_.empty()) start();
  std::unique_lock lock(mutex_);
  job_ = &job;
  count_ = count;
  next_ = 0;
  error_ = nullptr;
  asked_.notify_all();
  done_.wait(lock, [this] { return next_ >= count_ && running_ == 0; });
  job_ = nullptr;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void WorkerPool::work(int worker) {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return stop_ || (job_ != nullptr && next_ < count_); });
    if (stop_) return;
    while (job_ != nullptr && next_ < count_) {
      if (take(lock, worker)) done_.notify_one();
    }
  }
}

/// Does the next item; true if it was the last to end.
bool WorkerPool::take(std::unique_lock<std::mutex>& lock, int worker) {
  const std::size_t item = next_++;
  const Job& job = *job_;
  ++running_;
  lock.unlock();
  std::exception_ptr error;
  try {
    job(worker, item);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --running_;
  if (error != nullptr && (error_ == nullptr || item < failed_item_)) {
    error_ = std::move(error);
    failed_item_ = item;
    next_ = count_;
  }
  return next_ >= count_ && running_ == 0;
}

}  // namespace hyperslab::io
